/*
 * fake_cuda.h: a CUDA driver for machines without a GPU: build/fake_cuda/libcuda.so.1, found instead of the real one
 * when LD_LIBRARY_PATH says so. This header is what in-process tests may ask of it; they get the functions by dlsym
 * on the loaded library, and a real driver has none of them.
 *
 * It is as asynchronous as it can be: each stream is a thread with small pseudo-random delays, sources and tables are
 * read when an operation runs, and moves of a launch and copies of a batch run in varying order. It is strict where a
 * GPU would corrupt memory: device addresses cannot be touched by the host, fresh memory holds FAKE_CUDA_POISON, and
 * what is outside a live allocation, not mapped for the device or still in use when it is given back poisons the
 * context (error 700 from then on), with abort=1 after a message and abort(). In a child of fork() all calls fail.
 *
 * The environment variable FAKE_CUDA, read at first use, and fake_cuda_configure() take settings, separated by commas:
 *   devices=2              number of devices, at most 8; CUDA_VISIBLE_DEVICES is honoured for ordinals
 *   memory=1073741824      bytes of each
 *   version=13000          of the driver; below 12080 there are no batched copies
 *   driver=none | CODE     cuInit fails: no device, or this code
 *   mig=1                  the devices are MIG instances: cuDeviceGetUuid_v2 gives another UUID than the first version
 *   confidential=1         host memory cannot be registered nor read by kernels; what cuMemHostAlloc makes is managed
 *   register=refuse | limit:BYTES   cuMemHostRegister fails, or beyond that many bytes
 *   pinned=refuse          cuMemHostAlloc fails
 *   no_kernel=1            modules cannot be loaded
 *   no_batch=1             there are no batched copies, whatever the version
 *   capture=N              the next N cuMemFree say that a capture forbids them
 *   delay_us=50, seed=1    longest delay of an operation, and what delays follow from
 *   fail=N:CODE            the N-th call from now fails; fail_call=cuMemAlloc:N:CODE the N-th of this function
 *   abort=1                see above
 *
 * Failing calls: a failed call has no effect, except that releases (free, destroy, unregister, unload, release, pop)
 * release, and those that synchronize wait, and say that they failed. Codes that a real driver remembers (700 and its like) poison the current context.
 */
#ifndef TESTS_FAKE_CUDA_H
#define TESTS_FAKE_CUDA_H

#define FAKE_CUDA_POISON 0xa5

/* What is alive in the whole process; of the calling thread: context_depth. */
struct fake_cuda_live {
    long allocation_count, allocation_bytes;
    long registered_bytes, pinned_count;
    long stream_count, event_count, module_count;
    long retain_count;
    long context_depth;
    long abandoned_count; /* what contexts without a fault took with them when they ended, since the last reset */
};

/* Adds settings to those in force; 0, or -1 for what it does not know. */
int fake_cuda_configure(const char *settings);
/* Ends everything, forgets poison and failures, and goes back to the settings of the environment. */
void fake_cuda_reset(void);
/* The n-th driver call from now that can fail returns `code`; n = 0: none any more. */
void fake_cuda_fail_nth(unsigned long n, int code);
/* Calls that fake_cuda_fail_nth and the like made fail since then. */
unsigned long fake_cuda_fired(void);
/* Calls so far that can fail. */
unsigned long fake_cuda_calls(void);
/* In a child of fork(): calls that it made, all of which failed. */
unsigned long fake_cuda_forked_calls(void);
void fake_cuda_live(struct fake_cuda_live *ret_live);

#endif
