/*
 * model_header.h: the rules of a header once more, slowly and independently of the library: text read by jansson,
 * everything else as the format's description says it, without hash tables, clever sorting or one-pass checks.
 */
#ifndef HR_FUZZ_MODEL_HEADER_H
#define HR_FUZZ_MODEL_HEADER_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#define MODEL_UNKNOWN 1 /* jansson cannot say */

struct model_tensor {
    json_t *name;
    const char *dtype;
    unsigned bits;
    uint64_t *shape;
    size_t rank;
    uint64_t begin, end; /* in the data section */
};

struct model_pair {
    json_t *key, *value;
};

struct model_header {
    struct model_tensor *tensors; /* accepted: sorted */
    size_t tensor_count;
    struct model_pair *metadata;
    size_t metadata_count;
};

struct model_rules {
    int is_strict, allow_trailing;
};

/* 0, a code of the library, or MODEL_UNKNOWN. `json` is NUL-terminated. Release *ret_header in any case. */
int model_header_read(const char *json, size_t json_size, uint64_t file_size, const struct model_rules *rules,
                      struct model_header *ret_header);
void model_header_release(struct model_header *header);

/* The largest end of any tensor, 0 when the JSON is not a header. */
uint64_t model_header_end(const char *json, size_t json_size);

#endif
