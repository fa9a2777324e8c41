/* Starts a program that is no child of this process: `os.wait` of a script never sees it, and no SIGCHLD comes.
 *
 * A process in between starts it and ends at once, so that it belongs to init. That one has no signal for its end, and is
 * waited for here alone (__WCLONE). As in posix_spawn both share the memory of this process until they are done.
 */
#ifdef __linux__
#include <fcntl.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { STACK_BYTES = 1 << 16, MOST_FILES = 1 << 16 };

struct apart {
    char *const *words, *const *environ;
    int in, out;
    char *stack;
    pid_t pid;
    int failed;
};

static void close_others(void) {
#ifdef SYS_close_range
    if (syscall(SYS_close_range, 3u, ~0u, 0u) == 0) return;
#endif
    for (int file = 3; file < MOST_FILES; file++) close(file);
}

static int become(void *given) {
    struct apart *apart = given;
    int nowhere = open("/dev/null", O_WRONLY);
    setsid();
    if (dup2(apart->in, 0) == 0 && dup2(apart->out, 1) == 1 && dup2(nowhere, 2) == 2) {
        close_others();
        sigset_t none;
        sigemptyset(&none);  /* who starts it may have signals blocked */
        sigprocmask(SIG_SETMASK, &none, NULL);
        execve(apart->words[0], apart->words, apart->environ);
    }
    apart->failed = errno;
    _exit(127);
}

static int start_it(void *given) {
    struct apart *apart = given;
    apart->pid = clone(become, apart->stack + STACK_BYTES, CLONE_VM | CLONE_VFORK | SIGCHLD, apart);
    if (apart->pid < 0) apart->failed = errno;
    _exit(0);
}

/* The number of the process, or a negative errno. `in` and `out`, above 2, become its standard streams. */
int start_apart(char *const *words, char *const *environ, int in, int out) {
    struct apart apart = {.words = words, .environ = environ, .in = in, .out = out};
    sigset_t all, before;
    char *stack = malloc(2 * STACK_BYTES);
    if (!stack) return -ENOMEM;
    apart.stack = stack;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);  /* no handler runs in memory that is shared */
    pid_t between = clone(start_it, stack + 2 * STACK_BYTES, CLONE_VM | CLONE_VFORK, &apart);
    int failed = between < 0 ? errno : 0;
    if (between > 0) waitpid(between, NULL, __WCLONE);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    free(stack);
    return failed ? -failed : apart.failed ? -apart.failed : apart.pid;
}
#else
int start_apart(char *const *words, char *const *environ, int in, int out) {
    (void)words, (void)environ, (void)in, (void)out;
    return -1;
}
#endif
