/*
 * catalog.h: what stands behind a checkpoint's tables. Only the catalog's own files include it.
 */
#ifndef HR_CATALOG_CATALOG_H
#define HR_CATALOG_CATALOG_H

#include "catalog/checkpoint.h"
#include "catalog/paths.h"
#include "catalog/shards.h"

struct hr_catalog {
    struct hr_paths paths;     /* the files' names, and the index if there is one */
    struct hr_header *headers; /* one per file, or none; their tensors and hashes have moved into the checkpoint */
    size_t header_count;
    struct hr_names names; /* from names to tensors of the whole checkpoint */
    uint64_t *hashes;      /* parallel to the checkpoint's tensors */
    char *warning;         /* or NULL */
    char *folder;          /* the current one of the open, or "" where no path needs it */
    char *open_text;       /* of open_paths */
    /* of a table that the caller gave; it has no headers */
    char *names_text;
    uint64_t *shapes;
};

/* Makes what a checkpoint keeps of each of so many files, all zero. 0 without memory; closing the checkpoint frees it. */
int hr_catalog_files_new(struct hr_checkpoint *checkpoint, size_t file_count);
/*
 * Makes the table of names of all tensors. 0; where two have the same name, *ret_second is the later one's index, else
 * HR_NAMES_NONE.
 */
int hr_catalog_names(struct hr_checkpoint *checkpoint, size_t *ret_first, size_t *ret_second, struct hr_error *err);
/* Moves the tensors of all shards into one table with one table of names. Refuses a name that two files have. */
int hr_catalog_join(struct hr_checkpoint *checkpoint, struct hr_shard *shards, struct hr_error *err);
/* Fills open_paths, by the name of the folder that relative paths start from; NULL: the current one. */
int hr_catalog_anchor(struct hr_checkpoint *checkpoint, const char *folder, struct hr_error *err);
/* Checks the index both ways against the files, and its total_size: a wrong one is a warning. */
int hr_catalog_check_index(struct hr_checkpoint *checkpoint, struct hr_error *err);

#endif
