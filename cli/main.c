/*
 * main.c: finds the verb. It knows no option but its own, and no file.
 */
#include <headrace/headrace.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "options.h"
#include "output.h"
#include "verbs.h"

static const struct verb verbs[] = {
    {"check", "PATH...", "Say whether checkpoints are valid, and if not, what is wrong and where.", check_run},
    {"ls", "PATH...", "List the tensors of a checkpoint.", ls_run},
    {"load", "PATH...", "Load a checkpoint and report bytes, seconds, speed and route.", load_run},
    {"hash", "PATH...", "Print the XXH3-128 of every tensor's bytes as they were loaded.", hash_run},
    {"diff", "A B", "Say which tensors of two checkpoints differ.", diff_run},
    {"convert", "PATH... OUT", "Write a checkpoint anew: other dtypes, aligned, in shards or in one file.",
     convert_run},
    {"plan", "PATH...", "Print how a load would go, without moving a byte.", plan_run},
    {"probe", "[PATH]", "Measure what this machine can do, for load to compare with.", probe_run},
    {"doctor", "[PATH]", "Say what is usable on this machine, and for what is not, why.", doctor_run},
};
enum { VERB_COUNT = sizeof verbs / sizeof verbs[0] };

static void print_help(FILE *file)
{
    struct table table;
    fputs("usage: headrace VERB [OPTION]... [PATH]...\n"
          "Checks, lists, loads and converts safetensors checkpoints: a file, a list of files, a folder or an "
          "index.\n\nverbs:\n",
          file);
    table_init(&table, "ll");
    for (size_t i = 0; i < VERB_COUNT; i++) {
        table_addf(&table, "  %s", verbs[i].name);
        table_addf(&table, "%s", verbs[i].summary);
    }
    table_print(&table, file);
    fputs("\noptions:\n  --help     print this text; 'headrace VERB --help' lists the options of a verb\n"
          "  --version  print the version\n\n"
          "exit codes: 0 yes, 1 no (invalid, different, not there), 2 wrong usage, 3 I/O or device error\n",
          file);
}

static const char *verb_name_at(const void *context, size_t index)
{
    (void)context;
    return index < VERB_COUNT ? verbs[index].name : NULL;
}

static int complain_of_unknown(const char *name, int as_json)
{
    const char *nearest = nearest_name(name, verb_name_at, NULL);
    if (nearest)
        return complain_of_usage("", as_json, "unknown verb '%s'; did you mean '%s'?", name, nearest);
    return complain_of_usage("", as_json, "unknown verb '%s'; 'headrace --help' lists the verbs", name);
}

static int dispatch(int argument_count, char **arguments)
{
    const char *name = arguments[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        print_help(stdout);
        return EXIT_YES;
    }
    if (strcmp(name, "--version") == 0) {
        printf("headrace %s\n", hr_version());
        return EXIT_YES;
    }
    for (size_t i = 0; i < VERB_COUNT; i++)
        if (strcmp(name, verbs[i].name) == 0)
            return verbs[i].run(&verbs[i], argument_count - 2, arguments + 2);
    return complain_of_unknown(name, wants_json(argument_count - 1, arguments + 1));
}

int main(int argument_count, char **arguments)
{
    signal(SIGPIPE, SIG_IGN); /* a reader that left is a write error like any other */
    if (argument_count < 2) {
        print_help(stderr);
        return EXIT_USAGE;
    }
    return output_finish("", dispatch(argument_count, arguments));
}
