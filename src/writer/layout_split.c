/*
 * layout_split.c: which tensor goes to which file, by the rule of the Hugging Face hub's library: tensors fill a file in
 * the order in which they are given until the next one would pass the limit; one that is larger than the limit gets a
 * file of its own, which does not end the file that is being filled. Files are numbered as they are full.
 */
#include "base/limits.h"
#include "base/sys.h"
#include "writer/layout.h"

/* Gives tensors the file that they would be in if files were numbered as they are begun; counts files as they end. */
static size_t fill_files(struct hr_tensor *tensors, size_t tensor_count, uint64_t limit, size_t *end_numbers)
{
    size_t begun = 0, ended = 0, open = SIZE_MAX;
    uint64_t open_bytes = 0;
    for (size_t i = 0; i < tensor_count; i++) {
        struct hr_tensor *tensor = &tensors[i];
        if (tensor->size > limit) {
            tensor->file_index = begun;
            end_numbers[begun++] = ended++;
            continue;
        }
        if (open != SIZE_MAX && tensor->size > limit - open_bytes) {
            end_numbers[open] = ended++;
            open = SIZE_MAX;
        }
        if (open == SIZE_MAX) {
            open = begun++;
            open_bytes = 0;
        }
        open_bytes += tensor->size;
        tensor->file_index = open;
    }
    if (open != SIZE_MAX)
        end_numbers[open] = ended++;
    return ended;
}

int hr_layout_split(struct hr_tensor *tensors, size_t tensor_count, uint64_t limit, size_t *ret_file_count,
                    struct hr_error *err)
{
    size_t *end_numbers = hr_alloc_array(tensor_count + 1, sizeof *end_numbers);
    if (!end_numbers)
        return hr_fail_memory(err, (tensor_count + 1) * sizeof *end_numbers, "the files of a checkpoint");
    size_t count = fill_files(tensors, tensor_count, limit ? limit : UINT64_MAX, end_numbers);
    for (size_t i = 0; i < tensor_count; i++)
        tensors[i].file_index = end_numbers[tensors[i].file_index];
    hr_free(end_numbers);
    if (count > HR_FILE_COUNT_MAX - 1)
        return hr_fail(err, HR_ELIMIT_EXCEEDED, "%zu files of at most %llu bytes; a checkpoint has at most %u", count,
                       (unsigned long long)limit, HR_FILE_COUNT_MAX - 1);
    *ret_file_count = count ? count : 1;
    return 0;
}
