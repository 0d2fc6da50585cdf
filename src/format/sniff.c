/*
 * sniff.c: a table of what files begin with. A safetensors file begins with a length whose bytes could be
 * anything, so a start that may be one (a plausible length, then a brace) is never called something else.
 */
#include "format/sniff.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/utf8.h"

struct magic {
    const char *bytes;
    size_t size;
    const char *what;
};

#define MAGIC(bytes, what)            \
    {                                 \
        bytes, sizeof bytes - 1, what \
    }

static const struct magic binaries[] = {
    MAGIC("PK\x03\x04", "a ZIP archive, such as a PyTorch checkpoint (.pt, .bin); convert it to safetensors"),
    MAGIC("PK\x05\x06", "an empty ZIP archive"),
    MAGIC("GGUF", "a GGUF file; convert it to safetensors"),
    MAGIC("ggml", "a GGML file; convert it to safetensors"),
    MAGIC("tjgg", "a GGML file; convert it to safetensors"),
    MAGIC("\x93NUMPY", "a numpy .npy file"),
    MAGIC("\x89HDF\r\n\x1a\n", "an HDF5 file; convert it to safetensors"),
    MAGIC("\x7f"
          "ELF",
          "an ELF program or library"),
    MAGIC("\x1f\x8b\x08", "a gzip archive; unpack it"),
    MAGIC("\x28\xb5\x2f\xfd", "a zstd archive; unpack it"),
    MAGIC("\xfd"
          "7zXZ",
          "an xz archive; unpack it"),
    MAGIC("BZh", "a bzip2 archive; unpack it"),
    MAGIC("7z\xbc\xaf", "a 7-Zip archive; unpack it"),
    MAGIC("%PDF-", "a PDF document"),
    MAGIC("\x89PNG", "a PNG image"),
    MAGIC("\xff\xd8\xff", "a JPEG image"),
    MAGIC("ARROW1", "an Arrow file"),
    MAGIC("PAR1", "a Parquet file"),
};

/* Compared without case, behind white space. */
static const struct magic texts[] = {
    MAGIC("version https://git-lfs.github.com/spec/",
          "a Git LFS pointer, not the file itself; fetch it with git lfs pull"),
    MAGIC("<!doctype html", "an HTML page; a download probably got an error or login page"),
    MAGIC("<html", "an HTML page; a download probably got an error or login page"),
    MAGIC("<?xml", "an XML document; a download probably got an error message"),
    MAGIC("<", "an HTML or XML document; a download probably got an error page"),
    MAGIC("{", "JSON text; an index must have a name that ends in .index.json"),
    MAGIC("[", "JSON text"),
};

/* Pickle protocols 2 to 5: PROTO, the protocol, and an opcode that can follow. Older PyTorch files are pickles. */
static int is_pickle(const unsigned char *start, size_t size)
{
    static const unsigned char opcodes[] = {'}', ']', '(', ')', 'c', 'K', 'M', 'J', 'X', 'N', 0x8a, 0x8c, 0x95};
    return size >= 3 && start[0] == 0x80 && start[1] >= 2 && start[1] <= 5 && memchr(opcodes, start[2], sizeof opcodes);
}

/* A tar archive has its magic inside the first header block. */
static int is_tar(const unsigned char *start, size_t size)
{
    return size >= 262 && memcmp(start + 257, "ustar", 5) == 0;
}

/* Only characters of text; a character cut at the end counts as one. */
static int is_text(const unsigned char *start, size_t size)
{
    if (hr_utf8_valid_prefix(start, size) + 3 < size)
        return 0;
    for (size_t i = 0; i < size; i++)
        if (iscntrl(start[i]) && !isspace(start[i]))
            return 0;
    return size > 0;
}

/* A length that rule 1 would take, and then what a header begins with. */
static int may_be_safetensors(const unsigned char *start, size_t size)
{
    return size > 8 && (start[8] == '{' || isspace(start[8])) && memcmp(start + 4, "\0\0\0\0", 4) == 0;
}

/* Binary data may follow, as after a header without its length. */
static const char *text_sniff(const unsigned char *start, size_t size)
{
    if (size >= 3 && memcmp(start, "\xef\xbb\xbf", 3) == 0) {
        start += 3;
        size -= 3;
    }
    while (size > 0 && isspace(*start)) {
        start++;
        size--;
    }
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (size >= texts[i].size && strncasecmp((const char *)start, texts[i].bytes, texts[i].size) == 0)
            return texts[i].what;
    return NULL;
}

const char *hr_sniff(const unsigned char *start, size_t size)
{
    if (may_be_safetensors(start, size))
        return NULL;
    for (size_t i = 0; i < sizeof binaries / sizeof binaries[0]; i++)
        if (size >= binaries[i].size && memcmp(start, binaries[i].bytes, binaries[i].size) == 0)
            return binaries[i].what;
    if (is_pickle(start, size))
        return "a Python pickle, such as an old PyTorch checkpoint; convert it to safetensors";
    if (is_tar(start, size))
        return "a tar archive; unpack it";
    const char *what = is_text(start, size < 8 ? size : 8) ? text_sniff(start, size) : NULL;
    return !what && is_text(start, size) ? "a text file" : what;
}

int hr_sniff_refine(int code, const unsigned char *start, size_t size, int is_strict, struct hr_error *err)
{
    const char *what = code == HR_EHEADER_TOO_LARGE || code == HR_EINVALID_HEADER_LENGTH ||
                               code == HR_EINVALID_HEADER || code == HR_EINVALID_HEADER_DESERIALIZATION
                           ? hr_sniff(start, size)
                           : NULL;
    if (!what)
        return code;
    if (is_strict)
        return hr_fail_at(err, HR_ENOT_SAFETENSORS, 0, "not a safetensors file but %s", what);
    if (err) {
        size_t used = strlen(err->message);
        snprintf(err->message + used, sizeof err->message - used, "; this is %s", what);
    }
    return code;
}
