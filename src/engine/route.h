/*
 * route.h: which way the bytes of a load are read, and why.
 */
#ifndef HR_ENGINE_ROUTE_H
#define HR_ENGINE_ROUTE_H

#include "engine/load.h"

/*
 * Sets the load's route, backend, queue depth and reason from the loader's options, from what is usable here and,
 * for HR_ROUTE_AUTO, from how much of the needed files the page cache holds. The plan is made.
 */
int hr_route_choose(struct hr_load *load, struct hr_error *err);

#endif
