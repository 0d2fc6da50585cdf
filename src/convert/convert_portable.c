/*
 * convert_portable.c: the steps of conversions for every processor of the architecture.
 */
#define HR_LOOP_TARGET
#define HR_LOOP_TABLE hr_steps_portable
#include "convert/convert_loops.h"
