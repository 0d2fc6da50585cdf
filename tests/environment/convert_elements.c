/*
 * convert_elements.c: converts standard input: `convert_elements FROM TO [SKEW]`, names of dtypes, elements one behind the
 * other; SKEW bytes in front of both sides take their alignment away. So that tests can compare with other programs.
 */
#include <headrace/headrace.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert/convert.h"

int main(int argc, char **argv)
{
    uint32_t from = argc > 2 ? hr_dtype_find(argv[1], strlen(argv[1])) : 0;
    uint32_t to = argc > 2 ? hr_dtype_find(argv[2], strlen(argv[2])) : 0;
    size_t skew = argc > 3 ? strtoul(argv[3], NULL, 10) : 0, used = skew, capacity = skew + (1u << 16);
    if (!hr_convert_is_known(from, to))
        return fprintf(stderr, "usage: convert_elements FROM TO [SKEW], a pair that converts\n"), 2;
    unsigned char *source = malloc(capacity);
    for (size_t got = 1; source && got > 0; used += got) {
        if (used == capacity)
            source = realloc(source, capacity *= 2);
        got = source ? fread(source + used, 1, capacity - used, stdin) : 0;
    }
    size_t count = (used - skew) / (hr_dtype_bits(from) / 8), bytes = count * hr_dtype_bits(to) / 8;
    unsigned char *target = malloc(skew + bytes + 1);
    if (!source || !target)
        return fprintf(stderr, "convert_elements: out of memory\n"), 1;
    hr_convert(from, to, target + skew, source + skew, count);
    int failed = fwrite(target + skew, 1, bytes, stdout) != bytes || fflush(stdout) != 0;
    free(source);
    free(target);
    return failed;
}
