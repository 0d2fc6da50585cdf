/*
 * error.h: fills the caller's error object. The place that knows the fact calls hr_fail() once; callers on
 * the way up only add where it happened (hr_error_in_file, hr_error_in_tensor), and only if it is not said yet.
 * Every function takes NULL for `err`.
 */
#ifndef HR_BASE_ERROR_H
#define HR_BASE_ERROR_H

#include <headrace/headrace.h>
#include <stddef.h>
#include <stdint.h>

#define HR_PRINTF(format_index, first_index) __attribute__((format(printf, format_index, first_index)))

/*
 * Clears *err, sets code and message, and returns `code`. The message goes through hr_escape; arguments may be parts
 * of *err itself.
 */
int hr_fail(struct hr_error *err, int code, const char *format, ...) HR_PRINTF(3, 4);

/* The same with a byte offset. */
int hr_fail_at(struct hr_error *err, int code, uint64_t offset, const char *format, ...) HR_PRINTF(4, 5);

/* The same for a failed system call: the message gets ": strerror (errno)" and sys_errno is set. `sys_errno` > 0. */
int hr_fail_sys(struct hr_error *err, int code, int sys_errno, const char *format, ...) HR_PRINTF(4, 5);

/* The same for a failed call of a device's driver: the message gets ": NAME (code)" and driver_code is set. */
int hr_fail_driver(struct hr_error *err, int code, int driver_code, const char *driver_name, const char *format, ...)
    HR_PRINTF(5, 6);

/* HR_EOUT_OF_MEMORY with what it was for. */
int hr_fail_memory(struct hr_error *err, uint64_t bytes, const char *what);

void hr_error_in_file(struct hr_error *err, const char *path);
void hr_error_in_tensor(struct hr_error *err, const char *name, size_t name_size);

/*
 * Writes `size` bytes of text into `out`, NUL-terminated, control characters and invalid UTF-8 as \xNN, cut to
 * `capacity` (at least 4) with "..." at the end. Returns `out`.
 */
char *hr_escape(char *out, size_t capacity, const char *text, size_t size);

#endif
