/*
 * fuzz.h: what the fuzz targets share. A target is one function that libFuzzer calls with bytes, or that
 * replay_main.c calls with the kept corpus. A broken promise aborts, so that both report it in the same way.
 */
#ifndef HR_FUZZ_FUZZ_H
#define HR_FUZZ_FUZZ_H

#include <headrace/headrace.h>
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

_Noreturn void fuzz_fail(const char *file, int line, const char *condition);
#define FUZZ_CHECK(condition) ((condition) ? (void)0 : fuzz_fail(__FILE__, __LINE__, #condition))

/* What every error must be: `code` is in the list and in `err`, texts are one line of UTF-8, the offset is inside. */
void fuzz_check_error(const struct hr_error *err, int code, uint64_t offset_max);
/* All bytes of an output are still the mark that fuzz_mark() put there. */
void fuzz_mark(void *output, size_t size);
void fuzz_check_marked(const void *output, size_t size);

/* Structured input: numbers from the front; 0 when nothing is left. */
struct fuzz_feed {
    const uint8_t *data;
    size_t size;
};
uint8_t fuzz_byte(struct fuzz_feed *feed);
/* A number of one to eight bytes; the first byte says how many follow or is the number. */
uint64_t fuzz_number(struct fuzz_feed *feed);
/* A copy of what is left, NUL-terminated, allocated through hr_sys. */
char *fuzz_rest(const struct fuzz_feed *feed);

#endif
