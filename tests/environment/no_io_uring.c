/*
 * no_io_uring.c: runs a program for which the three calls of io_uring fail, as under the profiles of containers:
 *
 *   no_io_uring EPERM|ENOSYS PROGRAM [ARGUMENT]...
 *
 * The filter is inherited by everything that the program starts, and nothing can take it away.
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* These have one number on every architecture but alpha, so the filter need not look at which it is. */
#define FIRST SYS_io_uring_setup
#define LAST SYS_io_uring_register

static int install(unsigned error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, FIRST, 0, 2),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, LAST, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int argc, char **argv)
{
    int hidden = argc > 2 && strcmp(argv[1], "ENOSYS") == 0;
    if (argc < 3 || (!hidden && strcmp(argv[1], "EPERM") != 0)) {
        fprintf(stderr, "usage: no_io_uring EPERM|ENOSYS PROGRAM [ARGUMENT]...\n");
        return 2;
    }
    if (install(hidden ? ENOSYS : EPERM)) {
        fprintf(stderr, "no_io_uring: the filter is refused: %s\n", strerror(errno));
        return 3;
    }
    execvp(argv[2], argv + 2);
    fprintf(stderr, "no_io_uring: cannot run %s: %s\n", argv[2], strerror(errno));
    return 3;
}
