/*
 * make_files.h: files for tests. Every tensor's bytes follow from its seed and the position in the tensor, so a test
 * can say what any byte must be. The writer is independent of the library. Whatever fails here ends the running
 * cmocka test.
 */
#ifndef TESTS_SUPPORT_MAKE_FILES_H
#define TESTS_SUPPORT_MAKE_FILES_H

#include <stddef.h>
#include <stdint.h>

/* A folder of this program under TMPDIR or /tmp, made on first use and removed with all it holds at exit. */
const char *test_dir(void);
/* "DIR/name"; the text lives until exit. Folders within `name` are made. */
const char *test_path(const char *name);

/* The byte at `position` of what `seed` generates. Neighbouring bytes and seeds differ. */
uint8_t test_byte(uint64_t seed, uint64_t position);
void test_fill(void *memory, uint64_t seed, uint64_t position, size_t size);
/* The first i < size for which memory[i] is not test_byte(seed, position + i), or `size`. */
size_t test_mismatch(const void *memory, uint64_t seed, uint64_t position, size_t size);

struct test_tensor {
    const char *name;
    uint32_t dtype; /* enum hr_dtype */
    uint32_t rank;
    uint64_t shape[8];
    uint64_t seed;
    int sparse; /* a hole (zeros) but for the first and the last TEST_SPARSE_EDGE bytes, which follow the seed */
};
#define TEST_SPARSE_EDGE 4096u

uint64_t test_tensor_bytes(const struct test_tensor *tensor);
/* As test_mismatch, for bytes of the tensor from `position` on; knows the holes of sparse ones. */
size_t test_tensor_mismatch(const struct test_tensor *tensor, const void *memory, uint64_t position, size_t size);

/*
 * Writes a safetensors file with the tensors in this order, without gaps. `padding` blanks are added to the header,
 * which shifts the data section to any alignment. Returns the data section's offset.
 */
uint64_t test_file_write(const char *path, const struct test_tensor *tensors, size_t tensor_count, size_t padding);

/* Writes any bytes. */
void test_raw_write(const char *path, const void *bytes, size_t size);
/* Writes the 8 bytes of length, `json`, and `data_size` bytes that follow `seed`. Returns the data's offset. */
uint64_t test_json_write(const char *path, const char *json, uint64_t data_size, uint64_t seed);

#endif
