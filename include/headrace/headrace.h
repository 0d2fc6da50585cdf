/*
 * headrace: safetensors checkpoints into host and GPU memory, at the speed of the slowest link.
 *
 * The whole public C API. C99 and C++11 clean, no inline functions, no macro that is needed for use.
 *
 * Errors    Functions that can fail return 0 or a negative HR_E... code. The optional last parameter
 *           `struct hr_error *err` lives with the caller, may be NULL, and is filled only on failure.
 *           On failure every other output is untouched. Pointers that are not said to be optional must not be NULL.
 * Threads   A checkpoint is immutable after open, a loader after it was made: any thread may use them. All functions
 *           of a load may be called from any threads at once. Whoever closes or frees an object sees to it that no
 *           other call with it is running.
 * Blocking  Only what says so waits for storage, for readers or for the caller's callbacks.
 * Fork      In a child of fork() the parent's loaders and loads are of no use: their functions return HR_EFORKED, and
 *           freeing them frees memory only. Checkpoints are plain memory and go on working, with a new loader.
 * Sizes     `size` is bytes, `count` is things, `offset` is bytes from the start of a file.
 * Options   Option structs begin with their own `size`; set it to sizeof and zero the rest for the
 *           defaults. A struct longer than the library knows is refused unless its tail is zero.
 *
 * Devices   "cpu" is host memory. "cuda:N" is a GPU of NVIDIA, by the driver that is found when it is first asked for
 *           (libcuda.so.1); nothing of CUDA is needed to build or to link. Its primary context is used, which is the
 *           one that the CUDA runtime and the frameworks use; no other device is touched, and the context that is
 *           current on the caller's threads stays what it was. Pointers to its memory are device addresses.
 *
 * The library never prints, never exits and never reads the environment. (The CUDA driver reads CUDA_VISIBLE_DEVICES.)
 */
#ifndef HEADRACE_H
#define HEADRACE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HR_VERSION_MAJOR 0
#define HR_VERSION_MINOR 1
#define HR_VERSION_PATCH 0

#if defined(__GNUC__)
#define HR_API __attribute__((visibility("default")))
#else
#define HR_API
#endif

/* ------------------------------------------------------------------------------------------ errors */

/*
 * The one list of errors: X(NAME, number, "Kind", "what it means"). Codes are -number. Kinds up to
 * TensorNotFound are those of the reference reader (the safetensors Rust crate), the others are ours.
 * Numbers are never reused.
 */
#define HR_ERROR_LIST(X)                                                                                           \
    X(HEADER_TOO_SMALL, 1, "HeaderTooSmall", "the file is shorter than the 8 bytes that hold the header's length") \
    X(HEADER_TOO_LARGE, 2, "HeaderTooLarge", "the header's length is over 100,000,000 bytes")                      \
    X(INVALID_HEADER_LENGTH, 3, "InvalidHeaderLength", "the header reaches past the end of the file")              \
    X(INVALID_HEADER, 4, "InvalidHeader", "the header is not UTF-8")                                               \
    X(INVALID_HEADER_DESERIALIZATION, 5, "InvalidHeaderDeserialization", "the header is not the JSON it must be")  \
    X(INVALID_OFFSET, 6, "InvalidOffset", "a tensor's bytes leave a hole, overlap or run backwards")               \
    X(VALIDATION_OVERFLOW, 7, "ValidationOverflow", "a shape's element or bit count overflows 64 bits")            \
    X(MISALIGNED_SLICE, 8, "MisalignedSlice", "sub-byte elements do not fill whole bytes")                         \
    X(TENSOR_INVALID_INFO, 9, "TensorInvalidInfo", "a tensor's offsets disagree with its shape and dtype")         \
    X(METADATA_INCOMPLETE_BUFFER, 10, "MetadataIncompleteBuffer", "tensors do not cover the data section exactly") \
    X(TENSOR_NOT_FOUND, 11, "TensorNotFound", "no tensor has this name")                                           \
    X(DUPLICATE_TENSOR, 20, "DuplicateTensor", "a tensor's name occurs twice in one file")                         \
    X(DUPLICATE_KEY, 21, "DuplicateKey", "a key occurs twice in __metadata__ or in an index")                      \
    X(NOT_SAFETENSORS, 22, "NotSafetensors", "this is not a safetensors file but something else")                  \
    X(NAME_HAS_NUL, 23, "NameHasNul", "a tensor's name contains a NUL character")                                  \
    X(RANK_TOO_LARGE, 24, "RankTooLarge", "a tensor has more than 64 dimensions")                                  \
    X(LIMIT_EXCEEDED, 25, "LimitExceeded", "a bound of the library is exceeded")                                   \
    X(INDEX_INVALID, 26, "IndexInvalid", "the index file is not the JSON it must be")                              \
    X(INDEX_PATH_ESCAPES, 27, "IndexPathEscapes", "a file name in the index leaves the index's folder")            \
    X(SHARD_MISSING, 28, "ShardMissing", "a file that the index names does not exist")                             \
    X(TENSOR_NOT_IN_SHARD, 29, "TensorNotInShard", "the index maps a tensor to a file that lacks it")              \
    X(TENSOR_NOT_IN_INDEX, 30, "TensorNotInIndex", "a file has a tensor that the index does not list")             \
    X(TENSOR_IN_TWO_SHARDS, 31, "TensorInTwoShards", "two files hold a tensor of the same name")                   \
    X(FILE_CHANGED, 32, "FileChanged", "a file is not the one that was opened: size, mtime or inode differ")       \
    X(SHORT_READ, 33, "ShortRead", "a file ended before the bytes that were asked for")                            \
    X(IO_ERROR, 34, "IoError", "the operating system refused an operation on a file")                              \
    X(NOT_A_REGULAR_FILE, 35, "NotARegularFile", "a path is neither a regular file nor a folder of them")          \
    X(OUT_OF_MEMORY, 36, "OutOfMemory", "memory could not be allocated")                                           \
    X(DEVICE_ERROR, 37, "DeviceError", "a device driver call failed")                                              \
    X(DEVICE_UNAVAILABLE, 38, "DeviceUnavailable", "there is no such device on this machine")                      \
    X(UNSUPPORTED, 39, "Unsupported", "this combination is not supported")                                         \
    X(INVALID_ARGUMENT, 40, "InvalidArgument", "an argument is out of range or of the wrong form")                 \
    X(CANCELLED, 41, "Cancelled", "the load was cancelled")                                                        \
    X(FORKED, 42, "Forked", "the object was made before a fork and cannot be used in the child")                   \
    X(DEADLINE_EXCEEDED, 43, "DeadlineExceeded", "the load did not finish within its deadline")                    \
    X(END, 44, "End", "no item is left to return")                                                                 \
    X(GROUP_ERROR, 45, "GroupError", "a rank of the process group failed, differs, or does not answer")

enum hr_code {
    HR_OK = 0,
#define HR_ERROR_ENUM(name, number, kind, text) HR_E##name = -(number),
    HR_ERROR_LIST(HR_ERROR_ENUM)
#undef HR_ERROR_ENUM
};

#define HR_NO_OFFSET UINT64_MAX

/*
 * Filled as a whole when a call fails; it need not be set before. Names that do not fit are cut and end in "...";
 * control characters of the input, and what is not UTF-8, are written as \xNN.
 */
struct hr_error {
    int code;        /* HR_E..., or 0 */
    int sys_errno;   /* errno of the failed system call, or 0 */
    int driver_code; /* the device driver's code, or 0 */
    int reserved;
    uint64_t offset;    /* byte offset from the start of `file`, or HR_NO_OFFSET */
    char tensor[256];   /* "" when no tensor is concerned */
    char file[1024];    /* path, "" when no file is concerned */
    char message[1024]; /* one line: what was found, what is allowed, what to do */
};

/* Text of a code, never NULL; "unknown error" for what is not in the list. Thread-safe, static storage. */
HR_API const char *hr_strerror(int code);

/* Kind of a code ("InvalidOffset"), "Ok" for 0, "Unknown" for what is not in the list. As above. */
HR_API const char *hr_error_kind(int code);

/* The version of the library that runs, "0.1.0"; HR_VERSION_... are this header's. Thread-safe, static storage. */
HR_API const char *hr_version(void);

/* Frees text that hr_plan_describe() returned. NULL is allowed. Thread-safe. */
HR_API void hr_string_free(char *text);

/* ------------------------------------------------------------------------------------------ dtypes */

/* X(NAME, bits). The safetensors names; F4 and F6 count logical elements that are packed into bytes. */
/* clang-format off */
#define HR_DTYPE_LIST(X)                                                                              \
    X(BOOL, 8) X(F4, 4) X(F6_E2M3, 6) X(F6_E3M2, 6) X(U8, 8) X(I8, 8) X(F8_E5M2, 8) X(F8_E4M3, 8)     \
    X(F8_E8M0, 8) X(F8_E4M3FNUZ, 8) X(F8_E5M2FNUZ, 8) X(I16, 16) X(U16, 16) X(F16, 16) X(BF16, 16)    \
    X(I32, 32) X(U32, 32) X(F32, 32) X(C64, 64) X(F64, 64) X(I64, 64) X(U64, 64)

enum hr_dtype {
    HR_DTYPE_NONE = 0, /* in a request: as stored */
#define HR_DTYPE_ENUM(name, bits) HR_DTYPE_##name,
    HR_DTYPE_LIST(HR_DTYPE_ENUM)
#undef HR_DTYPE_ENUM
    HR_DTYPE_COUNT
};
/* clang-format on */

/* "BF16"; NULL when `dtype` is not a dtype. Static storage, thread-safe. */
HR_API const char *hr_dtype_name(uint32_t dtype);
/* Bits of one element; 0 when `dtype` is not a dtype. Thread-safe. */
HR_API uint32_t hr_dtype_bits(uint32_t dtype);
/* The dtype of exactly this name (`name_size` bytes), or HR_DTYPE_NONE. Thread-safe. */
HR_API uint32_t hr_dtype_find(const char *name, size_t name_size);
/*
 * 1 when elements of `from` can be made into `to` on the way into place, else 0; a dtype and itself are no pair.
 * Thread-safe. Pairs, rules and where they differ from PyTorch: docs/dtypes.md. In short:
 *
 * - F64 F32 F16 BF16, BOOL, and I8 to U64: each to each other. F8_E4M3 F8_E5M2 F8_E4M3FNUZ F8_E5M2FNUZ F8_E8M0: to and
 *   from F64 F32 F16 BF16. F4, F6 and C64: none.
 * - Floats are rounded to nearest even, those narrower than F32 by way of F32 (from F64 and from integers in two steps).
 *   What is too large is infinity, for F8_E4M3 its largest number, for the other F8 without infinity NaN. For F8_E8M0
 *   halves go up, and the sign gets lost.
 * - A NaN stays one of its sign, made quiet, with the leading bits of its payload as far as they have room; BF16 to F32
 *   moves the bits as they are. F8 has one NaN, or one of each sign; those without sign become F32 0x7f800001.
 * - Integers wrap. Floats are cut off towards zero: for I8, I16, I32 into 32 bits, for the others into 64 bits (U64:
 *   also 2^63 and more); what does not fit these, NaN too, is 1 in their highest bit alone. The low bits are the result.
 * - BOOL is 1 for whatever is not 0, also for a NaN and for a stored BOOL byte that is neither 0 nor 1.
 */
HR_API int hr_dtype_converts(uint32_t from, uint32_t to);

/* ------------------------------------------------------------------------------------- checkpoints */

struct hr_checkpoint;

/* One tensor of a checkpoint. Borrowed: valid until the checkpoint is closed. */
struct hr_tensor {
    const char *name;      /* UTF-8, NUL-terminated; under compat it may also contain NUL */
    size_t name_size;      /* bytes, without the final NUL */
    uint32_t dtype;        /* enum hr_dtype */
    uint32_t rank;         /* dimensions; 0 for a scalar */
    const uint64_t *shape; /* `rank` extents, in elements */
    size_t file_index;     /* into the checkpoint's files */
    uint64_t offset;       /* of the first byte, from the start of that file */
    uint64_t size;         /* bytes; 0 for a tensor without elements */
};

/* One file of a checkpoint. Borrowed: valid until the checkpoint is closed. */
struct hr_file {
    const char *path;     /* as it was opened */
    uint64_t size;        /* bytes */
    uint64_t data_offset; /* where the data section starts: 8 + the header's length; 0 of a caller's table */
    size_t tensor_first;  /* index of its first tensor */
    size_t tensor_count;
};

enum hr_open_mode {
    HR_OPEN_STRICT = 0, /* also refuses what no honest writer makes (duplicates, NUL in names, rank over 64) */
    HR_OPEN_COMPAT = 1  /* says exactly what the reference reader says */
};

struct hr_open_options {
    size_t size;             /* of this struct */
    uint32_t mode;           /* enum hr_open_mode */
    uint32_t allow_trailing; /* not 0: bytes after the last tensor are allowed */
    uint32_t thread_count;   /* threads that read headers of many files; 0: 8, since they mostly wait. At most 128 */
    uint32_t reserved;
};

/*
 * Opens a checkpoint: one .safetensors file, a list of them, a folder, or an index, which is a file whose name
 * ends in .json. Of several paths each must be a .safetensors file. In a folder an index decides which files
 * belong; without one, its *.safetensors files, sorted.
 * Reads the headers only and keeps no descriptor open. Identity (device, inode, size, mtime) of each
 * file is kept and compared by every load. `options` may be NULL. `paths` and `options` are read during the
 * call only; loads open the files again, relative ones in the folder that is the current one now, wherever the
 * program goes meanwhile.
 * Blocks on I/O, with threads of its own where there are many files. Thread-safe.
 * On success *ret_checkpoint belongs to the caller, who closes it with hr_checkpoint_close().
 */
HR_API int hr_checkpoint_open(const char *const *paths, size_t path_count, const struct hr_open_options *options,
                              struct hr_checkpoint **ret_checkpoint, struct hr_error *err);

/* One tensor of a file of any format: contiguous bytes whose place the caller knows. */
struct hr_extent {
    size_t size;      /* of this struct */
    const char *name; /* UTF-8 without NUL, `name_size` bytes, at least one; no NUL need follow */
    size_t name_size;
    uint32_t dtype;        /* enum hr_dtype; U8 for what has none of these, as quantized blocks */
    uint32_t rank;         /* at most 64 */
    const uint64_t *shape; /* `rank` extents, in elements; NULL for a scalar */
    size_t file_index;     /* into `paths` */
    uint64_t offset;       /* of the first byte, from the start of that file; any alignment */
};

/*
 * A checkpoint of tensors that the caller describes (an array; each has `size` set), in regular files of any format,
 * which are not parsed: the same loads, plans and errors as of one that was opened, without metadata. Extents may
 * overlap and leave holes. They stand in the order of (file, offset, position given), so the caller finds them by name,
 * with hr_checkpoint_find(). Everything is copied; identities of the files are those at this call.
 * Errors name tensor, file and offset: HR_EINVALID_ARGUMENT (name, dtype, file index), HR_ENAME_HAS_NUL,
 * HR_EDUPLICATE_TENSOR, HR_ERANK_TOO_LARGE, HR_EVALIDATION_OVERFLOW, HR_EMISALIGNED_SLICE,
 * HR_EMETADATA_INCOMPLETE_BUFFER (past the end of the file), and those of opening files.
 * Blocks while files are opened; their content is not read. Thread-safe. On success *ret_checkpoint belongs to the
 * caller, who closes it with hr_checkpoint_close().
 */
HR_API int hr_checkpoint_from_table(const char *const *paths, size_t path_count, const struct hr_extent *extents,
                                    size_t extent_count, struct hr_checkpoint **ret_checkpoint, struct hr_error *err);

/*
 * Closes a checkpoint; NULL is allowed. Its loads must have been freed, finished or not. What it lent (tensors, files,
 * names, metadata) is gone; DLPack tensors that were taken from loads stay valid.
 */
HR_API void hr_checkpoint_close(struct hr_checkpoint *checkpoint);

/*
 * Has the kernel read a checkpoint's first tensors ahead into the page cache, `most_bytes` in the order of files (0: a
 * quarter of the memory that is available), while loads cannot begin yet: a program imports, builds its model, starts a
 * GPU's driver. Files that the page cache holds are left alone. Blocks while the drive has enough to do, so call it on a
 * thread of its own; ends early, with success, when a load of the checkpoint starts. That load copies what came from
 * the page cache and, with route "auto" and without keep_cache, drops it there.
 * *ret_bytes: what was asked for; may be NULL. What cannot be read ahead is left to the load, which names the error.
 * Thread-safe; the checkpoint must stay open meanwhile.
 */
HR_API int hr_checkpoint_read_ahead(const struct hr_checkpoint *checkpoint, uint64_t most_bytes, uint64_t *ret_bytes,
                                    struct hr_error *err);

/* All of the following are thread-safe, do not block, and return borrowed data. `checkpoint` must not be NULL. */

HR_API size_t hr_checkpoint_count(const struct hr_checkpoint *checkpoint);
/* Tensors stand in the order of files, and in a file in the order of offsets. NULL when out of range. */
HR_API const struct hr_tensor *hr_checkpoint_at(const struct hr_checkpoint *checkpoint, size_t index);
/*
 * The tensor of exactly this name (`name_size` bytes), or NULL. Takes the same time however many there are. The index
 * of a tensor t is t - hr_checkpoint_at(checkpoint, 0).
 */
HR_API const struct hr_tensor *hr_checkpoint_find(const struct hr_checkpoint *checkpoint, const char *name,
                                                  size_t name_size);
/*
 * Index of the first tensor at or after `index` whose name matches `pattern`, or hr_checkpoint_count().
 * Shell patterns: `*` (any run, dots and slashes too), `?` (one character), `[a-z]`, `[!a-z]`, `\` quotes.
 * All matches: for (i = match(c, p, 0); i < count; i = match(c, p, i + 1)). Looks at every name in turn.
 */
HR_API size_t hr_checkpoint_match(const struct hr_checkpoint *checkpoint, const char *pattern, size_t index);
HR_API size_t hr_checkpoint_file_count(const struct hr_checkpoint *checkpoint);
/* Files stand in the order in which they were given, sorted, or first named by the index. NULL when out of range. */
HR_API const struct hr_file *hr_checkpoint_file(const struct hr_checkpoint *checkpoint, size_t file_index);
/*
 * The `index`-th pair of a file's __metadata__; returns 0, HR_EEND past the last one, or HR_EINVALID_ARGUMENT when
 * there is no such file. The texts are UTF-8 and NUL-terminated (and may contain NUL); sizes are bytes without the
 * final NUL. Pairs stand in the order of the header.
 */
HR_API int hr_checkpoint_metadata(const struct hr_checkpoint *checkpoint, size_t file_index, size_t index,
                                  const char **ret_key, size_t *ret_key_size, const char **ret_value,
                                  size_t *ret_value_size);
/* What is odd but allowed (an index whose total_size is wrong), one sentence each; NULL past the last. */
HR_API const char *hr_checkpoint_warning(const struct hr_checkpoint *checkpoint, size_t index);

/* ---------------------------------------------------------------------------------------- requests */

/*
 * Elements start, start + step, ... below stop. A step of 0 means 1. start <= stop <= extent, else
 * HR_EINVALID_ARGUMENT; start == stop is an empty range.
 */
struct hr_range {
    uint64_t start, stop, step;
};

/*
 * One tensor of a request. What is left zero means: the whole tensor, as stored, on the loader's first
 * device, in memory of ours. A tensor may be asked for more than once. `into` memory must not overlap that of
 * another item; what of it lies between the elements is not written. Strides may be negative. With another dtype than
 * the stored one elements are converted on their way, without memory for a second copy; `into` and its strides are
 * those of the converted elements. What does not convert is HR_EUNSUPPORTED.
 */
struct hr_item {
    size_t size; /* of this struct */
    size_t tensor_index;
    const struct hr_range *ranges; /* one per dimension, or NULL for all; read during the call only */
    uint32_t dtype;                /* of the result: HR_DTYPE_NONE is that of the tensor; see hr_dtype_converts() */
    uint32_t device_index;         /* into the loader's devices */
    void *into;                    /* the caller's memory, or NULL; any alignment; must live until the load is freed */
    const int64_t *into_strides;   /* bytes, one per dimension, read like `ranges`; NULL: compact, row-major */
    /*
     * With shard_world not 0: of what `ranges` leave of dimension `shard_dim`, only the block that belongs to rank
     * `shard_rank` of `shard_world`, as of hr_shard_range().
     */
    uint32_t shard_dim, shard_rank, shard_world;
    uint32_t reserved;
};

/*
 * The block of `extent` elements that belongs to `rank` of `world`, as tensor parallelism cuts: blocks have
 * ceil(extent / world) elements; the last ones may be shorter or empty. Nothing where rank >= world. Thread-safe.
 */
HR_API void hr_shard_range(uint64_t extent, uint32_t rank, uint32_t world, struct hr_range *ret_range);

/*
 * Parses numpy's slice notation, "[a:b, 3, ..., ::2]" (the brackets are optional), for a tensor: integers,
 * positive steps, ellipsis, negative indices, clamping. An integer gives a range of one element, so the rank stays.
 * Fills `rank` ranges. HR_EINVALID_ARGUMENT names the position in `text`. Thread-safe, does not block.
 */
HR_API int hr_slice_parse(const char *text, const struct hr_tensor *tensor, struct hr_range *ret_ranges,
                          struct hr_error *err);

/* ----------------------------------------------------------------------------------------- devices */

enum hr_device_type { HR_DEVICE_CPU = 1, HR_DEVICE_CUDA = 2 }; /* DLPack's numbers */

struct hr_device_info {
    size_t size;           /* of this struct, set by the caller */
    uint32_t type;         /* enum hr_device_type */
    int32_t ordinal;       /* N of "cuda:N"; 0 for "cpu" */
    char name[128];        /* "NVIDIA H200"; "cpu" */
    char uuid[48];         /* "GPU-...", "MIG-..."; "" for "cpu" */
    char pci[32];          /* "0000:1b:00.0"; "" for "cpu" */
    uint64_t memory_bytes; /* in all; 0 for "cpu" */
    uint32_t compute_major, compute_minor;
    uint32_t copy_engine_count; /* asynchronous ones */
    uint32_t confidential;      /* not 0: confidential computing, which forbids the device to read host memory */
};

/*
 * Describes a device by its name: "cpu", "cuda" (the first one), "cuda:N", a PCI address ("0000:1b:00.0"), a UUID
 * ("GPU-..."), or "auto": the first GPU that is usable here, else "cpu". N counts what CUDA_VISIBLE_DEVICES leaves.
 * Makes no context and leaves no trace on the device. HR_EDEVICE_UNAVAILABLE says why it cannot be had,
 * HR_EINVALID_ARGUMENT that this is no name of a device, HR_EFORKED that the driver was started before a fork.
 * Thread-safe; the first call may take a second while the driver starts.
 */
HR_API int hr_device_find(const char *name, struct hr_device_info *ret_info, struct hr_error *err);

/* ----------------------------------------------------------------------------------------- loaders */

struct hr_loader;

enum hr_route {
    /*
     * Each file by what the page cache holds of it: that is copied from there by preadv, the rest is read past it, by
     * io_uring where that is usable. The route that is named, with the reason, is the one of most bytes.
     */
    HR_ROUTE_AUTO = 0,
    HR_ROUTE_PREAD = 1, /* reader threads that call preadv */
    HR_ROUTE_URING = 2, /* io_uring */
    HR_ROUTE_MMAP = 3,  /* host only: private writable mappings, read when touched; a file that shrinks means SIGBUS */
    HR_ROUTE_GDS =
        4, /* GPUs only: GPUDirect Storage, by libcufile.so.0; taken by itself only where transfers are direct */
    HR_ROUTE_COUNT
};

/*
 * "auto", "pread", "uring", "mmap", "gds"; NULL when out of range. And back: the route, or -1. Thread-safe, static
 * storage.
 */
HR_API const char *hr_route_name(uint32_t route);
HR_API int hr_route_find(const char *name);

/* What the allocation hook is asked for. */
struct hr_allocation {
    size_t size;           /* of this struct */
    size_t item_index;     /* the item that it is for, or SIZE_MAX for an arena of many */
    uint64_t bytes;        /* never 0 */
    uint64_t alignment;    /* a power of two */
    uint32_t device_index; /* into the loader's devices; on a GPU `alloc` returns a device address */
    uint32_t reserved;
};

/*
 * Memory from the caller. `alloc` returns NULL when there is none, which is HR_EOUT_OF_MEMORY; it is called only on
 * threads that are inside hr_load_start, _next, _wait or _wait_all, on several of them at once when several
 * wait. `free` gets what `alloc` got and gave; it is called on those threads, in hr_load_free or hr_load_drop, or
 * on whichever thread calls the deleter of the last tensor that was taken, so it and `context` must live as long as
 * those tensors. `free` may be NULL: then the memory is the caller's to free. Neither may call back into the load.
 * Not asked: for `into` items, for tensors without bytes, and for what HR_ROUTE_MMAP maps.
 */
struct hr_allocator {
    void *context;
    void *(*alloc)(void *context, const struct hr_allocation *allocation);
    void (*free)(void *context, void *memory, const struct hr_allocation *allocation);
};

/*
 * Values out of range are refused with HR_EINVALID_ARGUMENT, an io_uring or a cuFile that is not usable with
 * HR_EUNSUPPORTED.
 */
struct hr_loader_options {
    size_t size;                /* of this struct */
    const char *const *devices; /* names as of hr_device_find(); NULL with a count of 0: { "cpu" }. At most 64 */
    size_t device_count;
    uint32_t route; /* enum hr_route */
    /*
     * Reader threads of each load, at most 128; 0: the cores they may use, at most 16, and with one GPU 12; in a process
     * group each of several ranks on the same cores has its part of three quarters of them.
     */
    uint32_t thread_count;
    /* The grid of reads, 64 KiB to 1 GiB (with a GPU: 64 MiB); 0: 4 MiB, of short loads and of ranks with GPUs 2 MiB. */
    uint64_t chunk_bytes;
    uint32_t queue_depth; /* io_uring: reads in flight per thread; 0: 8. At most 256 */
    uint32_t reserved;
    uint64_t arena_bytes;          /* largest arena that holds more than one tensor; 0: 256 MiB, with GPUs 512 */
    struct hr_allocator allocator; /* alloc == NULL: the library's own */
    uint64_t staging_bytes; /* most pinned memory, for GPUs; 0: what is fastest, at most 256 MiB. At least one chunk */
    uint32_t keep_cache;    /* auto: not 0: what storage delivers stays in the page cache, for the next reader */
    uint32_t lane_count;    /* streams a GPU; 0: what its copy engines want. At most 16 */
    uint32_t no_binding;    /* not 0: readers and pinned memory are not bound to the GPUs' NUMA node */
};

/*
 * What is costly and worth keeping for many loads: device handles, and pinned memory, which grows with the first load to
 * a GPU and stays. It has no threads and no memory of tensors. `options` may be NULL; it is read during the call only.
 * Loads of one loader may run at once, from several threads, and share its pinned memory. Thread-safe; with a GPU the
 * first call of a process starts the driver and its context, which takes a part of a second.
 * On success *ret_loader belongs to the caller, who frees it with hr_loader_free().
 */
HR_API int hr_loader_new(const struct hr_loader_options *options, struct hr_loader **ret_loader, struct hr_error *err);
/* Gives back the pinned memory that no load uses now; it grows again when needed. Returns its bytes. Thread-safe. */
HR_API uint64_t hr_loader_trim(struct hr_loader *loader);
/* The loader's `device_index`-th device. HR_EINVALID_ARGUMENT when there is none, or without `size`. Thread-safe. */
HR_API int hr_loader_device(const struct hr_loader *loader, size_t device_index, struct hr_device_info *ret_info);
/* Frees a loader; NULL is allowed. Its loads must be freed before. DLPack tensors taken from them stay valid. */
HR_API void hr_loader_free(struct hr_loader *loader);

/* ---------------------------------------------------------------------------------- process groups */

/*
 * Ranks that load together, by the caller's transport (NCCL, gloo, MPI): the library has none. Every rank starts a load
 * of the same items in the same order - tensors, ranges, dtypes, shard_dim, shard_world - with shard_rank its own;
 * destinations are each rank's affair. What several ranks need is read once in all, a part by each, and spread by
 * collectives; what one rank alone needs, and lies in one piece, it reads itself. hr_plan_describe() says which.
 *
 * The functions return 0, or not: then the load fails with HR_EGROUP_ERROR and what `failure` says, and none of them but
 * `free` is called again. `exchange` is called once, in hr_load_start(); alloc and free there and in hr_load_free(); the
 * collectives on one thread of the library's own, one at a time, in the same order on all ranks. Sizes are the same on
 * all ranks. Host loads: a collective is done when it returns. GPU loads: it is done when the work is that it has put
 * into `stream`, and it begins after what `stream` holds.
 *
 * Every window carries the state of every rank: an error, a cancellation or the hr_load_free() of a load that lacks
 * items, of one rank, ends the load of all at that window, with HR_EGROUP_ERROR that names the rank; items that were
 * ready before stay usable. A rank that dies cannot tell: ending the collectives that wait for it is the transport's
 * affair (a timeout, an abort), and `failure` is how the library learns of it.
 */
struct hr_group {
    size_t size;    /* of this struct */
    uint32_t rank;  /* below world */
    uint32_t world; /* 1 to 1024; with 1 the load is as one without a group */
    void *context;
    void *stream; /* GPUs: a CUstream (NULL: the legacy default); its own, or one that is idle */
    /* Memory on the load's device, on 256 bytes; NULL: none. Both hooks NULL: the library's own memory. */
    void *(*alloc)(void *context, uint64_t bytes);
    void (*free)(void *context, void *memory);
    /* Host memory: all-gather of `bytes` per rank. Blocks. */
    int (*exchange)(void *context, const void *send, void *receive, uint64_t bytes);
    /* The next two: memory of `alloc`. `bytes` of each rank, in their order, into `receive` on all. */
    int (*all_gather)(void *context, const void *send, void *receive, uint64_t bytes);
    /*
     * `send` of the root: `bytes` for each rank, in their order; of the others: NULL. Called for each root in turn, from
     * 0 on, with nothing between, so that the last may start what the others have prepared.
     */
    int (*scatter)(void *context, const void *send, void *receive, uint64_t bytes, uint32_t root);
    /*
     * Optional: why. Called after a function failed and after every wait for a collective; NULL: all is well. The text
     * is read before the next call.
     */
    const char *(*failure)(void *context);
};

/*
 * For a rank that cannot start (its files are bad, say): takes part in the `exchange` of the others' hr_load_start(),
 * which fail there and name this rank and `cause`. Blocks as `exchange` does. HR_EINVALID_ARGUMENT for a group that is
 * not valid, HR_EGROUP_ERROR when `exchange` fails.
 */
HR_API int hr_group_decline(const struct hr_group *group, const struct hr_error *cause, struct hr_error *err);

/* ------------------------------------------------------------------------------------------- loads */

struct hr_load;

enum hr_ownership {
    HR_OWN_ARENA = 0, /* arenas hold many tensors each, every tensor on 256 bytes */
    HR_OWN_EACH = 1   /* one allocation a tensor, by the allocation hook where there is one */
};

struct hr_progress {
    uint64_t bytes_done, bytes_total; /* of the request; done: landed, though perhaps not yet part of a ready item */
    size_t item_done, item_count;     /* done: ready */
    uint64_t elapsed_ns;              /* since hr_load_start() was called */
};

enum hr_trace_kind {
    HR_TRACE_READ = 0,     /* a read operation; offset and bytes of the file */
    HR_TRACE_COPY = 1,     /* a chunk from staging to its places on a GPU, from its submission until seen done */
    HR_TRACE_STAGING = 2,  /* a reader waited for a free piece of pinned memory, or made one (bytes: its size) */
    HR_TRACE_IDLE = 3,     /* a reader had nothing to read */
    HR_TRACE_ALLOCATE = 4, /* a waiting thread made destinations (bytes) */
    HR_TRACE_KIND_COUNT
};

/* One span of a load's timeline. */
struct hr_trace_event {
    size_t size;               /* of this struct */
    uint32_t kind;             /* enum hr_trace_kind */
    uint32_t reader;           /* index of the reader thread; UINT32_MAX: a waiting thread */
    uint64_t begin_ns, end_ns; /* since hr_load_start() was called */
    size_t file_index;         /* SIZE_MAX when no file is concerned */
    uint64_t offset, bytes;
};

struct hr_load_options {
    size_t size;        /* of this struct */
    uint32_t ownership; /* enum hr_ownership; `into` items are always the caller's */
    uint32_t reserved;
    uint64_t window_bytes; /* most bytes that exist and were not handed out yet; 0: no bound. One tensor always fits */
    uint64_t deadline_ns;  /* from the start; 0: none. Seen by threads that wait: the load fails, what is ready stays */
    uint64_t progress_ns;  /* time between two calls of `progress`; 0: 100 ms */
    void *progress_context;
    /*
     * Called on threads inside hr_load_wait, _next or _wait_all, when progress_ns have passed since the last call; no
     * lock is held. Several threads that wait may be in it at once if it takes longer than progress_ns. It may call
     * hr_load_cancel and hr_load_stats, no other function of this load. Not 0 cancels the load. NULL: none.
     */
    int (*progress)(void *context, const struct hr_progress *progress);
    uint32_t sequential; /* not 0: no threads, nothing ahead, window_bytes unused; who waits reads what it waits for */
    uint32_t reserved_tail;
    /*
     * One CUstream (cudaStream_t) for each device of the loader, or NULL: the legacy default streams. Memory that the
     * caller provides (`into`, the allocation hook) is written only after what these streams held when it was provided.
     * What is ready may be used on any stream.
     */
    void *const *streams;
    void *trace_context;
    /*
     * Called for each span when it ends, on the library's threads and on waiting ones, on several at once; no lock is
     * held. NULL: none.
     */
    void (*trace)(void *context, const struct hr_trace_event *event);
    /*
     * Ranks that load together; NULL: alone. Copied; its context and stream must live until the load is freed.
     * HR_EUNSUPPORTED with `sequential`, with HR_ROUTE_MMAP, and for items of more than one device.
     * hr_load_start() calls its `exchange` once, and blocks for the other ranks, whenever the group itself is valid, also
     * when it fails. hr_load_free() waits for the collective that this rank takes part in.
     */
    const struct hr_group *group;
    uint64_t group_bytes; /* most memory for sending and receiving, on the load's device; 0: 56 MiB */
};

/*
 * A loaded item. `data` is borrowed until the item is dropped or the load is freed, or as long as a DLPack tensor of it
 * lives; it may be written, by kernels too, and the load must not be freed while they run. On a GPU it is a device
 * address. `shape` and `strides` are borrowed until the load is freed.
 */
struct hr_view {
    size_t size;    /* of this struct, set by the caller */
    void *data;     /* the first element; NULL, or `into`, for a tensor without bytes */
    uint64_t bytes; /* of its elements, without what strides leave between them */
    uint32_t dtype;
    uint32_t rank;
    const uint64_t *shape;  /* of the slice, in elements */
    const int64_t *strides; /* bytes; for sub-byte dtypes of compact tensors, of the row-major bytes */
    uint32_t device_index;
    uint32_t device_type;   /* enum hr_device_type */
    int32_t device_ordinal; /* N of "cuda:N" */
    uint32_t reserved;
};

struct hr_stats {
    size_t size;                /* of this struct, set by the caller */
    uint64_t bytes_needed;      /* of all items, as they are stored */
    uint64_t bytes_ready;       /* of items that are ready */
    uint64_t bytes_read;        /* by system calls; over-read and repeats included */
    uint64_t bytes_allocated;   /* destinations, as the allocator was asked */
    uint64_t peak_window_bytes; /* most bytes that existed and were not handed out */
    size_t item_count, file_count, chunk_count;
    uint64_t read_count;  /* read operations */
    uint64_t plan_ns;     /* stages, wall clock of the calling thread: planning, */
    uint64_t allocate_ns; /*   making destinations, */
    uint64_t wait_ns;     /*   waiting */
    uint64_t read_ns;     /* summed over the reader threads: in read operations, */
    uint64_t place_ns;    /*   moving bytes from bounce buffers into place, */
    uint64_t idle_ns;     /*   without work */
    uint64_t total_ns;    /* from the start to the last item ready, or to now */
    uint32_t thread_count;
    uint32_t route;         /* the one used */
    char route_reason[160]; /* why */
    char bottleneck[64];    /* "storage or page cache", "destinations", "consumer", ... */
    uint64_t bytes_direct;  /* of bytes_read: past the page cache, with O_DIRECT */
    /* GPUs */
    uint64_t bytes_sent;    /* over the links to devices */
    uint64_t copy_count;    /* by copy engines, one for each range of memory */
    uint64_t kernel_count;  /* launches of the kernel that places small and strided ranges */
    uint64_t staging_bytes; /* pinned memory of the loader now */
    uint64_t copy_wait_ns;  /* summed over the reader threads: waiting for copies that must end before they go on */
    uint64_t cpu_ns;        /* of processor time that the readers took, as of their last chunks */
    char staging[160];      /* kind of the staging memory, and why not a better one; "" without GPUs */
    char placement[160];    /* the NUMA node of readers and staging, or why they are not bound; "" without GPUs */
    /*
     * Auto route: how what the page cache did not hold is read, and why not better: "direct by uring: ext4". Of the
     * first such file; "" while there is none, and while it is being found out.
     */
    char storage[160];
    /* process groups */
    uint64_t bytes_received;   /* by collectives: of this rank's own reading and of the others' */
    uint64_t bytes_spread;     /* of bytes_ready: came by collectives */
    uint64_t collective_count; /* that this rank took part in */
    uint64_t group_bytes;      /* memory for them */
    uint64_t group_wait_ns;    /* waiting for collectives, and so for other ranks */
    /* conversion */
    uint64_t bytes_converted; /* of bytes_needed: of items that get another dtype */
    char conversion[160]; /* who converts them: "readers", "GPU", or why not the GPU; "" where nothing is converted */
};

/*
 * Starts loading `items` (an array; each has `size` set). Plans, asks the page cache about a few files (auto route),
 * makes the destinations that the window has room for on this thread, and returns while reader threads work.
 * `options` may be NULL. The checkpoint and the loader must outlive the load; the items need not. Errors of the
 * request name the item; errors of reading come out of the waiting calls. 0 items are a load that is finished.
 * Thread-safe. On success *ret_load belongs to the caller, who frees it with hr_load_free().
 */
HR_API int hr_load_start(struct hr_loader *loader, const struct hr_checkpoint *checkpoint, const struct hr_item *items,
                         size_t item_count, const struct hr_load_options *options, struct hr_load **ret_load,
                         struct hr_error *err);

/*
 * The waiting calls block until what they wait for is ready or the load has failed, was cancelled, or has passed its
 * deadline. They may be used in any order and from any threads at once, and they make the destinations that come
 * into the window, so `alloc` and `progress` are called on their threads. An item is ready when its last byte has
 * landed and its file is still the one that was opened. The first error ends the load and is what every call
 * returns for what is not ready; items that were ready before stay usable and are still returned.
 * An item that hr_load_wait or hr_load_next returned counts as handed out and leaves the window: its memory stays
 * until it is dropped or the load is freed.
 */
/* Waits for one item, at once when it was ready or handed out; its bytes are read next, and the window admits it. */
HR_API int hr_load_wait(struct hr_load *load, size_t item_index, struct hr_error *err);
/*
 * Returns each item once, in the order of readiness; HR_EEND when all were handed out. Skips items that hr_load_wait
 * handed out, but not those that were dropped without being handed out: they are returned, and cannot be viewed.
 * In a process group the end is when other ranks need nothing more that this one reads; it comes at once if they failed.
 */
HR_API int hr_load_next(struct hr_load *load, size_t *ret_item_index, struct hr_error *err);
/*
 * Waits for all items, and as hr_load_next for the end; the window does not bound this call. Hands none out: hr_load_next
 * still returns each.
 */
HR_API int hr_load_wait_all(struct hr_load *load, struct hr_error *err);

/* The next three do not block and may be called from any thread. HR_EINVALID_ARGUMENT as for hr_load_view. */

/* Describes a ready item without waiting; HR_EINVALID_ARGUMENT when it is not ready or was dropped. */
HR_API int hr_load_view(struct hr_load *load, size_t item_index, struct hr_view *ret_view, struct hr_error *err);
/*
 * Hands a ready item out as a DLPack tensor: `dlpack_major` 0 gives a DLManagedTensor *, 1 a
 * DLManagedTensorVersioned * of version 1; others are HR_EUNSUPPORTED. Ownership moves to the caller, who calls its
 * deleter once, on any thread; it may outlive the load, the loader and the checkpoint. The memory of `into` items
 * stays the caller's and must live as long. An item can be taken more than once until it is dropped: the tensors
 * share memory. HR_EUNSUPPORTED, with the tensor, for what DLPack cannot describe: F4 with an odd last dimension,
 * strides that are no whole elements.
 */
HR_API int hr_load_take(struct hr_load *load, size_t item_index, uint32_t dlpack_major, void **ret_managed_tensor,
                        struct hr_error *err);
/*
 * The load gives up its hold on a ready item: its memory is freed with the last tensor taken from it, now when none
 * was. With HR_OWN_ARENA it shares its memory with others, and that is freed with the last of them.
 */
HR_API int hr_load_drop(struct hr_load *load, size_t item_index, struct hr_error *err);
/*
 * Copies `bytes` of a ready item's memory from byte `offset` on into `ret_bytes`, host memory: from where the tensor is,
 * never from staging, so that it can be checked. Offsets count from view.data; of an item with strides that are not
 * compact, only what lies at rising addresses from there. Blocks until copied. Any thread. HR_EINVALID_ARGUMENT as for
 * hr_load_view, HR_EDEVICE_ERROR.
 */
HR_API int hr_load_read(struct hr_load *load, size_t item_index, uint64_t offset, uint64_t bytes, void *ret_bytes,
                        struct hr_error *err);

/*
 * Stops reading; what is not ready gives HR_ECANCELLED. Any thread, also inside `progress`; does not block: reads in
 * flight end by themselves. Not for signal handlers. Nothing in a forked child, and for NULL.
 */
HR_API void hr_load_cancel(struct hr_load *load);
/* Any thread, at any time, does not block. HR_EINVALID_ARGUMENT without `size`; HR_EFORKED in a forked child. */
HR_API int hr_load_stats(const struct hr_load *load, struct hr_stats *ret_stats);
/*
 * Stops reading, waits for reads in flight (which may take as long as storage does), joins the threads, and frees what
 * was not taken, whether the load is finished or not. In a process group, a load that has all its items and was not
 * cancelled first goes on until the end, as above. No other call with it may be running. NULL is allowed.
 */
HR_API void hr_load_free(struct hr_load *load);

enum hr_plan_format { HR_PLAN_JSON = 0, HR_PLAN_TEXT = 1 };

/*
 * The plan of such a load without moving a byte: files, extents, chunks, pieces, routes with reasons,
 * threads, staging. Arguments and errors are those of hr_load_start(). Thread-safe. The text belongs to the caller,
 * who frees it with hr_string_free().
 */
HR_API int hr_plan_describe(struct hr_loader *loader, const struct hr_checkpoint *checkpoint,
                            const struct hr_item *items, size_t item_count, const struct hr_load_options *options,
                            uint32_t format, char **ret_text, struct hr_error *err);

/* ----------------------------------------------------------------------------------------- writing */

/* A pair of __metadata__. UTF-8; sizes are bytes, and texts need no final NUL. */
struct hr_metadata {
    const char *key;
    size_t key_size;
    const char *value;
    size_t value_size;
};

/* The content of a tensor that is to be written: at least as many bytes as dtype and shape say. */
struct hr_source {
    size_t size;            /* of this struct */
    const void *data;       /* the first element; may be NULL for a tensor without bytes. On a GPU a device address */
    const int64_t *strides; /* bytes, one per dimension, host memory and whole-byte dtypes only; NULL: compact */
    uint32_t device_index;  /* into the options' devices */
    uint32_t reserved;
};

struct hr_write_options {
    size_t size;                        /* of this struct */
    const struct hr_metadata *metadata; /* written in this order, into every file; NULL: none */
    size_t metadata_count;
    /*
     * 0: the layout of the reference writer, byte for byte. A power of two from 8 to 1 MiB: the data section begins on a
     * multiple of it, by blanks at the end of the header, and tensors whose size is a multiple of it come first, so that
     * each of them begins on one too.
     */
    uint64_t align;
    /*
     * 0: one file. Else most bytes of tensors in a file: tensors fill files in the order in which they are given, and one
     * that is larger has a file of its own. What fits one file is one file of the name that was given; else NAME.safetensors
     * becomes NAME-00001-of-00003.safetensors and so on, and NAME.safetensors.index.json.
     */
    uint64_t shard_bytes;
    const char *const *devices; /* names as of hr_device_find(); NULL with a count of 0: { "cpu" }. At most 64 */
    size_t device_count;
    uint32_t thread_count; /* hr_write: threads, at most 128; 0: the cores this process may use, at most 8 */
    uint32_t no_sync;      /* not 0: does not wait for storage; after a power failure the file may be empty */
    void *progress_context;
    /* hr_write: called on the calling thread about every 100 ms; items are tensors. Not 0 cancels. NULL: none. */
    int (*progress)(void *context, const struct hr_progress *progress);
};

/*
 * Writes a checkpoint as it comes, tensor by tensor, in any order. What is written lies in files of other names in the
 * folder of `path` until hr_writer_finish() renames them; so whoever opens `path` sees the old file or the whole new one,
 * and who has the old one mapped or open keeps it. A file that is replaced leaves its permissions to the new one; else
 * they are what the umask says. A symbolic link is replaced, not followed. Other files stay: an index or shards of an
 * earlier checkpoint of another number of files are the caller's to remove. A relative `path` starts from the folder that
 * is the current one at hr_writer_new(). Of several files, up to 16 threads of its own wait for the storage.
 */
struct hr_writer;

/*
 * Of `tensors` name, dtype, rank and shape are used; `tensors` and `options` (which may be NULL) are read during the call
 * only. Checks everything, lays the files out, and creates the first one. Blocks on I/O. Thread-safe.
 *
 * HR_EINVALID_ARGUMENT (with the tensor) for a name that is __metadata__ or not UTF-8 and for no such dtype;
 * HR_ENAME_HAS_NUL, HR_EDUPLICATE_TENSOR, HR_EDUPLICATE_KEY, HR_ERANK_TOO_LARGE, HR_EVALIDATION_OVERFLOW,
 * HR_EMISALIGNED_SLICE (sub-byte elements that do not fill bytes), HR_EHEADER_TOO_LARGE; HR_ENOT_A_REGULAR_FILE for a
 * path that is something else; HR_EIO_ERROR, HR_EDEVICE_UNAVAILABLE.
 * On success *ret_writer belongs to the caller, who frees it with hr_writer_free().
 */
HR_API int hr_writer_new(const char *path, const struct hr_tensor *tensors, size_t tensor_count,
                         const struct hr_write_options *options, struct hr_writer **ret_writer, struct hr_error *err);
/*
 * Writes one tensor, each once; after a failure it may be put again. Any thread, several at once; blocks on I/O. From a
 * GPU it goes through 4 MiB of pinned memory for each thread that is in here: two threads overlap copies and writes. Work
 * that writes the memory must be done before the call.
 */
HR_API int hr_writer_put(struct hr_writer *writer, size_t tensor_index, const struct hr_source *source,
                         struct hr_error *err);
/*
 * When all tensors were put: waits until they are on the storage, renames the files into place, then the index, and waits
 * for the folder. Where a rename fails, no file of this checkpoint is left. Afterwards only hr_writer_free() is of use.
 * HR_EINVALID_ARGUMENT names a tensor that was not put.
 */
HR_API int hr_writer_finish(struct hr_writer *writer, struct hr_error *err);
/* The files as they will be named, without the index. NULL when out of range. Borrowed. Thread-safe, does not block. */
HR_API size_t hr_writer_file_count(const struct hr_writer *writer);
HR_API const char *hr_writer_path(const struct hr_writer *writer, size_t file_index);
/* Without a finish before, removes what was written. NULL is allowed. In a forked child it frees memory only. */
HR_API void hr_writer_free(struct hr_writer *writer);

/*
 * All of the above at once, from memory: source i is tensor i's. Threads of its own write blocks of a few MiB. Blocks until
 * the files are in place; after a failure nothing is left. HR_ECANCELLED when `progress` said so. Thread-safe.
 */
HR_API int hr_write(const char *path, const struct hr_tensor *tensors, const struct hr_source *sources,
                    size_t tensor_count, const struct hr_write_options *options, struct hr_error *err);
/*
 * The same into memory: the bytes that the one file would have. With `ret_bytes` NULL only says how many in *ret_size;
 * else HR_EINVALID_ARGUMENT when `capacity` is less. Of the options shard_bytes must be 0. Thread-safe.
 */
HR_API int hr_serialize(const struct hr_tensor *tensors, const struct hr_source *sources, size_t tensor_count,
                        const struct hr_write_options *options, void *ret_bytes, uint64_t capacity, uint64_t *ret_size,
                        struct hr_error *err);

/* ------------------------------------------------------------------------------------- the machine */

/* Something that this library can use here, or why it cannot. */
struct hr_capability {
    const char *name; /* "io_uring"; static storage */
    int usable;
    char detail[240]; /* what was found, and where it is not usable what would help */
};

/*
 * Probes what is usable: fills up to `capacity` entries and returns how many there are; with NULL it only counts.
 * Starts no load, touches no file but /proc and /sys. Thread-safe.
 */
HR_API size_t hr_capabilities(struct hr_capability *ret_capabilities, size_t capacity);

/*
 * How a load of `path` (a file, a folder, an index) would read what the page cache does not hold, as hr_stats.storage
 * names it, and what the filesystem refuses and wants; 256 bytes are enough, longer text is cut. Of a checkpoint of
 * many files the first one is asked: it is opened, and a block of it is read past the page cache. Blocks for as long as
 * that takes. Thread-safe. HR_EINVALID_ARGUMENT without `path`, `ret_text` or `capacity`; errors of finding and opening
 * the file are those of hr_checkpoint_open(), but its content is not looked at.
 */
HR_API int hr_storage_describe(const char *path, char *ret_text, size_t capacity, struct hr_error *err);

struct hr_probe_options {
    size_t size;           /* of this struct */
    const char *device;    /* as of hr_device_find(); NULL: "auto" */
    const char *path;      /* a file to read, best one of some GiB; NULL: no storage and no page cache is measured */
    uint32_t thread_count; /* most threads; 0: the cores this process may use, at most 16 */
    uint32_t reserved;
    uint64_t budget_ns; /* about how long it may take; 0: 5 s */
};

#define HR_PROBE_SIZE_COUNT 4

/* The ceilings of a machine, in bytes a second; 0: not measured. The best of a few trials each. */
struct hr_limits {
    size_t size;  /* of this struct, set by the caller */
    int64_t time; /* seconds since 1970 */
    struct hr_device_info device;
    uint32_t core_count;
    uint32_t page_cache_threads;                   /* with which page_cache was reached */
    uint64_t memory_copy;                          /* one thread, host to host */
    uint64_t page_cache;                           /* the file's resident pages into touched host memory, by preadv */
    uint64_t page_cache_fresh;                     /* into memory that is touched by it for the first time */
    uint64_t storage;                              /* O_DIRECT reads of the file */
    uint64_t to_device_sizes[HR_PROBE_SIZE_COUNT]; /* what the next line is for: 1, 4, 16, 64 MiB */
    uint64_t to_device[HR_PROBE_SIZE_COUNT];       /* pinned memory to the device, copies of that size one by one */
    uint64_t from_device;                          /* the device to pinned memory, 64 MiB */
    uint64_t page_cache_to_device;                 /* page cache, staging and device together */
    uint64_t pin;                                  /* pinned memory made: mapped, touched and registered, 66 MiB */
    char page_cache_detail[160], storage_detail[160], device_detail[160]; /* how, or why not measured */
};

/*
 * Measures what this machine can do, with its own reads and copies. Blocks for about budget_ns, uses the given threads
 * fully, up to 256 MiB of host memory and 64 MiB of the device's. Leaves the page cache as it is: only what it holds of
 * `path` (64 MiB at least) is read through it. What cannot be measured is 0 and has its reason; only bad arguments, an
 * unusable device and no memory are errors. `options` may be NULL. Thread-safe.
 */
HR_API int hr_probe(const struct hr_probe_options *options, struct hr_limits *ret_limits, struct hr_error *err);

#ifdef __cplusplus
}
#endif

#endif
