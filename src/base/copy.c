/*
 * copy.c: non-temporal stores of SSE2, which all of x86-64 has; elsewhere memcpy.
 */
#include "base/copy.h"

#include <stdint.h>
#include <string.h>

#ifdef __x86_64__

#include <emmintrin.h>

#define LINE_BYTES 64u
/* Below this the fence costs more than what is saved. */
#define STREAM_BYTES_MIN 4096u

/* `target` is on a cache line, and `size` whole lines. */
static void stream_lines(char *target, const char *source, size_t size)
{
    for (size_t i = 0; i < size; i += LINE_BYTES) {
        const __m128i *from = (const __m128i *)(source + i);
        __m128i *to = (__m128i *)(target + i);
        __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
        __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
        _mm_stream_si128(to, a);
        _mm_stream_si128(to + 1, b);
        _mm_stream_si128(to + 2, c);
        _mm_stream_si128(to + 3, d);
    }
    _mm_sfence(); /* before what tells other threads */
}

void hr_copy_past_caches(void *target, const void *source, size_t size)
{
    char *to = target;
    const char *from = source;
    if (size >= STREAM_BYTES_MIN) {
        size_t head = -(uintptr_t)to % LINE_BYTES;
        memcpy(to, from, head);
        size_t body = (size - head) / LINE_BYTES * LINE_BYTES;
        stream_lines(to + head, from + head, body);
        to += head + body;
        from += head + body;
        size -= head + body;
    }
    memcpy(to, from, size);
}

#else

void hr_copy_past_caches(void *target, const void *source, size_t size)
{
    memcpy(target, source, size);
}

#endif
