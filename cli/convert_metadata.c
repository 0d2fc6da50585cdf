/*
 * convert_metadata.c: see convert_metadata.h.
 */
#include "convert_metadata.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "output.h"

static int is_equal(const char *a, size_t a_size, const char *b, size_t b_size)
{
    return a_size == b_size && memcmp(a, b, a_size) == 0;
}

/* Among the first `count` pairs; NULL: it is not there. */
static struct hr_metadata *find(const struct metadata_list *list, size_t count, const struct hr_metadata *pair)
{
    for (size_t i = 0; i < count; i++)
        if (is_equal(list->pairs[i].key, list->pairs[i].key_size, pair->key, pair->key_size))
            return &list->pairs[i];
    return NULL;
}

static size_t count_pairs(const struct hr_checkpoint *checkpoint)
{
    struct hr_metadata pair;
    size_t count = 0;
    for (size_t file = 0; file < hr_checkpoint_file_count(checkpoint); file++)
        for (size_t i = 0;
             hr_checkpoint_metadata(checkpoint, file, i, &pair.key, &pair.key_size, &pair.value, &pair.value_size) == 0;
             i++)
            count++;
    return count;
}

static int parse_given(const struct text_list *given, struct metadata_list *list, struct hr_error *err)
{
    for (size_t i = 0; i < given->count; i++) {
        const char *text = given->texts[i], *equals = strchr(text, '=');
        if (!equals || equals == text)
            return error_set(err, HR_EINVALID_ARGUMENT, "--metadata '%s' is not of the form KEY=VALUE", text);
        struct hr_metadata pair = {text, (size_t)(equals - text), equals + 1, strlen(equals + 1)};
        struct hr_metadata *old = find(list, list->count, &pair);
        *(old ? old : &list->pairs[list->count++]) = pair;
    }
    return 0;
}

/* `old` is what was there under the key, of those that were given when it is one of the first `given_count`. */
static int add_pair(struct metadata_list *list, size_t given_count, size_t end, const struct hr_metadata *pair,
                    const char *path, struct hr_error *err)
{
    const struct hr_metadata *old = find(list, end, pair);
    if (!old) {
        list->pairs[list->count++] = *pair;
        return 0;
    }
    if (old < list->pairs + given_count || is_equal(old->value, old->value_size, pair->value, pair->value_size))
        return 0;
    char *key = escape(pair->key, pair->key_size);
    error_set(err, HR_EINVALID_ARGUMENT,
              "__metadata__ has another value of '%s' here than in a file before; say with --metadata which to write",
              key);
    snprintf(err->file, sizeof err->file, "%s", path);
    free(key);
    return err->code;
}

/* Keys of one file are different, so its own need not be looked at: one large header does not take squared time. */
static int add_file(struct metadata_list *list, size_t given_count, const struct hr_checkpoint *checkpoint, size_t file,
                    struct hr_error *err)
{
    struct hr_metadata pair;
    size_t end = list->count;
    int code = 0;
    for (size_t i = 0; code == 0 && hr_checkpoint_metadata(checkpoint, file, i, &pair.key, &pair.key_size, &pair.value,
                                                           &pair.value_size) == 0;
         i++)
        code = add_pair(list, given_count, end, &pair, hr_checkpoint_file(checkpoint, file)->path, err);
    return code;
}

int metadata_merge(const struct hr_checkpoint *checkpoint, const struct text_list *given,
                   struct metadata_list *ret_list, struct hr_error *err)
{
    struct metadata_list list = {0};
    list.pairs = allocate(given->count + count_pairs(checkpoint), sizeof *list.pairs);
    int code = parse_given(given, &list, err);
    size_t given_count = list.count;
    for (size_t file = 0; code == 0 && file < hr_checkpoint_file_count(checkpoint); file++)
        code = add_file(&list, given_count, checkpoint, file, err);
    if (code == 0)
        *ret_list = list;
    else
        free(list.pairs);
    return code;
}
