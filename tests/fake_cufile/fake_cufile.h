/*
 * fake_cufile.h: a cuFile for machines without GPUDirect Storage: build/fake_cufile/libcufile.so.0, found when
 * LD_LIBRARY_PATH says so. It reads by pread and copies with the CUDA driver that is loaded, real or fake. This header is
 * what in-process tests may ask of it; they get the functions by dlsym.
 *
 * It is stricter than the real one: what is not aligned, not registered, beyond its buffer, without a CUDA context, or
 * used after its end is a violation, which is counted, said on stderr, and refused.
 *
 * The environment variable FAKE_CUFILE, read at first use, and fake_cufile_configure() take settings, separated by commas:
 *   open=CODE        the driver does not open
 *   close_input=1    opening and closing the driver close descriptor 0, as a real one can
 *   major=2          version of nvidia-fs in the properties; 0: there is none
 *   storage=BITS, control=BITS   dstatusflags, dcontrolflags
 *   aperture=BYTES   most registered bytes; beyond that CU_FILE_GPU_MEMORY_PINNING_FAILED
 *   handle=CODE      files are refused
 *   short=BYTES      no read returns more
 *   excess=1         reads say one byte more than was asked for
 *   truncate=BYTES   the next read cuts its file to this size first
 *   fail=N:CODE      the N-th call from now that can fail does; a read returns -CODE, or for codes under 5000 -1 and errno
 */
#ifndef TESTS_FAKE_CUFILE_H
#define TESTS_FAKE_CUFILE_H

struct fake_cufile_live {
    long open_count, handle_count, buffer_count, buffer_bytes;
    long violation_count, read_count; /* since the last reset */
};

/* Adds settings to those in force; 0, or -1 for what it does not know. */
int fake_cufile_configure(const char *settings);
/* Back to the settings of the environment; counts of violations and reads begin anew. */
void fake_cufile_reset(void);
void fake_cufile_live(struct fake_cufile_live *ret_live);
/* Calls that fail=N made fail since it was set. */
unsigned long fake_cufile_fired(void);

#endif
