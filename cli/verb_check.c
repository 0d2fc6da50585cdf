/*
 * verb_check.c: one verdict a path. Only headers are read; a checkpoint lives no longer than its line.
 */
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "output.h"
#include "request.h"

static void summarize(char out[160], const struct hr_checkpoint *checkpoint)
{
    char tensors[64], files[64];
    uint64_t bytes = 0;
    size_t count = hr_checkpoint_count(checkpoint);
    for (size_t i = 0; i < count; i++)
        bytes += hr_checkpoint_at(checkpoint, i)->size;
    snprintf(out, 160, "%s, %llu byte%s, %s", human_count(tensors, count, "tensor"), (unsigned long long)bytes,
             bytes == 1 ? "" : "s", human_count(files, hr_checkpoint_file_count(checkpoint), "file"));
}

static void print_warnings(const char *path, const struct hr_checkpoint *checkpoint)
{
    const char *warning;
    for (size_t i = 0; (warning = hr_checkpoint_warning(checkpoint, i)); i++)
        complain("check", "%s: warning: %s", path, warning);
}

/* In a folder or an index the message has to name the file; for a file the path is it. */
static void name_the_shard(const char *path, struct hr_error *err)
{
    char message[sizeof err->file + sizeof err->message + 2];
    char *shown = escape(path, strlen(path));
    if (*err->file && strcmp(err->file, shown) != 0 && !message_names_file(err)) {
        snprintf(message, sizeof message, "%s: %s", err->file, err->message);
        memcpy(err->message, message, sizeof err->message - 1);
        err->message[sizeof err->message - 1] = '\0';
    }
    free(shown);
}

static void print_json(const char *path, const struct hr_error *err)
{
    struct json json = {0};
    json_open(&json, NULL, '{');
    json_string(&json, "path", path, strlen(path));
    json_bool(&json, "ok", err->code == 0);
    json_text(&json, "kind", err->code ? hr_error_kind(err->code) : NULL);
    json_text(&json, "tensor", err->tensor);
    json_offset(&json, "offset", err->offset);
    json_string(&json, "message", err->message, strlen(err->message));
    json_close(&json, '}');
    json_end(&json);
}

static void print_human(const char *path, const struct hr_error *err)
{
    print_escaped(stdout, path, strlen(path));
    if (err->code == 0) {
        printf(": ok (%s)\n", err->message);
        return;
    }
    printf(": %s: %s", hr_error_kind(err->code), err->message);
    error_print_place(stdout, err);
    putchar('\n');
}

/* Returns the exit code that this path alone would have. */
static int check_path(const char *path, const struct open_flags *flags, int as_json)
{
    struct hr_checkpoint *checkpoint;
    struct hr_error err;
    if (checkpoint_open(&path, 1, flags, &checkpoint, &err) == 0) {
        char summary[160];
        summarize(summary, checkpoint);
        error_set(&err, HR_OK, "%s", summary);
        if (!as_json)
            print_warnings(path, checkpoint);
        hr_checkpoint_close(checkpoint);
    } else {
        name_the_shard(path, &err);
    }
    if (as_json)
        print_json(path, &err);
    else
        print_human(path, &err);
    return error_exit_code(&err);
}

int check_run(const struct verb *verb, int argument_count, char **arguments)
{
    struct open_flags flags = {0};
    int as_json = 0, code;
    struct text_list paths;
    int seen[EXIT_FAULT + 1] = {0};
    const struct option options[] = {OPEN_OPTIONS(flags), JSON_OPTION(as_json), {0}};
    if (!options_parse(verb, options, argument_count, arguments, (struct operand_count){1, SIZE_MAX}, &paths, &code))
        return code;
    for (size_t i = 0; i < paths.count; i++)
        seen[check_path(paths.texts[i], &flags, as_json)] = 1;
    text_list_release(&paths);
    return seen[EXIT_NO] ? EXIT_NO : seen[EXIT_FAULT] ? EXIT_FAULT : seen[EXIT_USAGE] ? EXIT_USAGE : EXIT_YES;
}
