/*
 * no_io_uring.c: runs a program for which the three calls of io_uring fail, as under the profiles of containers:
 *
 *   no_io_uring EPERM|ENOSYS|REGISTER PROGRAM [ARGUMENT]...
 *
 * With REGISTER only io_uring_register fails, EPERM: there are rings, but neither buffers nor files can be registered.
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

/* They have one number on every architecture but alpha, so the filter need not look at which it is. */
static int install(unsigned first, unsigned error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, first, 0, 2),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, SYS_io_uring_register, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int argc, char **argv)
{
    int hidden = argc > 2 && strcmp(argv[1], "ENOSYS") == 0;
    int has_rings = argc > 2 && strcmp(argv[1], "REGISTER") == 0;
    if (argc < 3 || (!hidden && !has_rings && strcmp(argv[1], "EPERM") != 0)) {
        fprintf(stderr, "usage: no_io_uring EPERM|ENOSYS|REGISTER PROGRAM [ARGUMENT]...\n");
        return 2;
    }
    if (install(has_rings ? SYS_io_uring_register : SYS_io_uring_setup, hidden ? ENOSYS : EPERM)) {
        fprintf(stderr, "no_io_uring: the filter is refused: %s\n", strerror(errno));
        return 3;
    }
    execvp(argv[2], argv + 2);
    fprintf(stderr, "no_io_uring: cannot run %s: %s\n", argv[2], strerror(errno));
    return 3;
}
