/* A file system that fails, and a wall clock that is set: loaded into a job by LD_PRELOAD.

   CHAOS_UNDER: the folder below which everything fails. CHAOS_FAILS: a file; while it is there, its content is the number
   of the error, and behind a blank how many calls succeed between two that fail (0: all of them fail).
   CHAOS_CLOCK: a file that holds the nanoseconds by which the wall clock is ahead, while it is there. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) __typeof__(name) *real = (__typeof__(name) *) dlsym(RTLD_NEXT, #name)

static int calls; /* of all threads; a race changes which call fails, no more */

/* What the file that a variable names holds, in 64 bytes; calls of the system only, so that nothing ends up in itself. */
static int holds(const char *variable, char *text) {
    const char *path = getenv(variable);
    int saved = errno, file = path ? (int) syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC) : -1;
    long length = file < 0 ? 0 : syscall(SYS_read, file, text, 63);
    if (file >= 0) syscall(SYS_close, file);
    text[length > 0 ? length : 0] = 0;
    errno = saved;
    return length > 0;
}

/* The error that is on, or 0. */
static int wanted(void) {
    char text[64];
    int number = 0, between = 0;
    if (!holds("CHAOS_FAILS", text) || sscanf(text, "%d %d", &number, &between) < 1) return 0;
    return calls++ % (between + 1) ? 0 : number;
}

static int is_under(const char *path) {
    const char *under = getenv("CHAOS_UNDER");
    return under && *under && !strncmp(path, under, strlen(under));
}

static int fails_path(const char *path) {
    int saved = errno, number = path && is_under(path) ? wanted() : 0;
    errno = number ? number : saved;
    return number;
}

static int fails_file(int file) {
    char link[64], path[PATH_MAX];
    int saved = errno, number = 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    long length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (length > 0) {
        path[length] = 0;
        number = is_under(path) ? wanted() : 0;
    }
    errno = number ? number : saved;
    return number;
}

static int writes(int flags) { return flags & (O_WRONLY | O_RDWR | O_CREAT); }

ssize_t write(int file, const void *bytes, size_t size) {
    REAL(write);
    return fails_file(file) ? -1 : real(file, bytes, size);
}

ssize_t writev(int file, const struct iovec *parts, int number) {
    REAL(writev);
    return fails_file(file) ? -1 : real(file, parts, number);
}

ssize_t pwrite64(int file, const void *bytes, size_t size, off64_t where) {
    REAL(pwrite64);
    return fails_file(file) ? -1 : real(file, bytes, size, where);
}

int fsync(int file) {
    REAL(fsync);
    return fails_file(file) ? -1 : real(file);
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    return fails_path(path) ? -1 : real(path, mode);
}

int rename(const char *from, const char *to) {
    REAL(rename);
    return fails_path(to) ? -1 : real(from, to);
}

int unlink(const char *path) {
    REAL(unlink);
    return fails_path(path) ? -1 : real(path);
}

#define OPENS(name)                                                       \
    int name(const char *path, int flags, ...) {                          \
        va_list more;                                                     \
        va_start(more, flags);                                            \
        mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;         \
        va_end(more);                                                     \
        REAL(name);                                                       \
        return writes(flags) && fails_path(path) ? -1 : real(path, flags, mode); \
    }

OPENS(open)
OPENS(open64)

FILE *fopen64(const char *path, const char *mode) {
    REAL(fopen64);
    return strchr("wa", *mode) && fails_path(path) ? NULL : real(path, mode);
}

/* Kernel's clock plus the step; only the wall clock is ever set. */
int clock_gettime(clockid_t clock, struct timespec *now) {
    char text[64];
    int failed = (int) syscall(SYS_clock_gettime, clock, now);
    if (failed || clock != CLOCK_REALTIME || !holds("CHAOS_CLOCK", text)) return failed;
    long long shown = now->tv_sec * 1000000000LL + now->tv_nsec + atoll(text);
    now->tv_sec = shown / 1000000000;
    now->tv_nsec = shown % 1000000000;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void) zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (where) *where = precise.tv_sec;
    return precise.tv_sec;
}
