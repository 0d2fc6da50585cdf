/*
 * verbs.h: what a verb of the command is. Each stands in a file of its own and uses the public header only.
 * A verb gets the arguments behind its name and returns the exit code of the process.
 */
#ifndef CLI_VERBS_H
#define CLI_VERBS_H

/* A signal ends with 128 + its number, as shells report it. */
enum exit_code {
    EXIT_YES = 0,   /* valid, the same, done */
    EXIT_NO = 1,    /* invalid, different, not there */
    EXIT_USAGE = 2, /* the command line or the environment is wrong */
    EXIT_FAULT = 3  /* an I/O or device error */
};

/* The name stands in usage lines and errors, the summary in help. */
struct verb {
    const char *name;
    const char *operands;
    const char *summary;
    int (*run)(const struct verb *verb, int argument_count, char **arguments);
};

int check_run(const struct verb *verb, int argument_count, char **arguments);
int ls_run(const struct verb *verb, int argument_count, char **arguments);
int load_run(const struct verb *verb, int argument_count, char **arguments);
int hash_run(const struct verb *verb, int argument_count, char **arguments);
int diff_run(const struct verb *verb, int argument_count, char **arguments);
int convert_run(const struct verb *verb, int argument_count, char **arguments);
int plan_run(const struct verb *verb, int argument_count, char **arguments);
int probe_run(const struct verb *verb, int argument_count, char **arguments);
int doctor_run(const struct verb *verb, int argument_count, char **arguments);

#endif
