/* Notices a signal before its handler runs, and cannot be seen from Python: `signal.getsignal` reads a table of its own,
 * which stays as the script left it, and no wakeup descriptor and no pipe is taken.
 *
 * A handler is put in front of the one that the process has for the signal. It wakes a thread that waits in `signal_wait`
 * and calls the one behind it, so a handler of the script runs as ever. Where there is none, the signal would have ended
 * the process at once; now the thread does it, with `signal_end`, when it is ready. In a child that was forked, and after
 * `signal_stop`, the handler does nothing but what would have been done without it.
 *
 * Everything in the handler may be called from one (man 7 signal-safety).
 */
#ifdef __linux__
#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#define SIGNALS 65
enum { STOPPED = 0, NO_SIGNAL = -1 };

static struct sigaction behind[SIGNALS];
static volatile sig_atomic_t came[SIGNALS];
static volatile sig_atomic_t stopped = 1;
static volatile pid_t owner;
static sem_t wakes;

static int is_default(int number) {
    return !(behind[number].sa_flags & SA_SIGINFO) && behind[number].sa_handler == SIG_DFL;
}

static void in_front(int number, siginfo_t *info, void *context) {
    int before = errno, watched = !stopped && owner == getpid();
    if (watched) {
        came[number] = 1;
        sem_post(&wakes);
    }
    if (behind[number].sa_flags & SA_SIGINFO) {
        behind[number].sa_sigaction(number, info, context);
    } else if (is_default(number)) {
        if (!watched) {  /* it takes effect when this handler returns */
            signal(number, SIG_DFL);
            raise(number);
        }
    } else if (behind[number].sa_handler != SIG_IGN) {
        behind[number].sa_handler(number);
    }
    errno = before;
}

static int is_ours(const struct sigaction *one) {
    return (one->sa_flags & SA_SIGINFO) && one->sa_sigaction == in_front;
}

/* Begins to listen; `signal_watch` says to what. */
void signal_start(void) {
    sem_init(&wakes, 0, 0);
    for (int number = 0; number < SIGNALS; number++) came[number] = 0;
    owner = getpid();
    stopped = 0;
}

/* Puts our handler in front of the one that the process has now, unless it is there. A signal that is ignored stays so. */
void signal_watch(int number) {
    struct sigaction now, ours;
    if (stopped || owner != getpid() || sigaction(number, NULL, &now) || is_ours(&now)) return;
    if (now.sa_flags & SA_RESETHAND) return;
    if (!(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_IGN) return;
    ours = now;
    ours.sa_sigaction = in_front;
    ours.sa_flags |= SA_SIGINFO | SA_ONSTACK;
    if (!(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_DFL) ours.sa_flags |= SA_RESTART;
    behind[number] = now;
    if (sigaction(number, &ours, &now) == 0 && !is_ours(&now)) behind[number] = now;  /* another thread may have set one */
}

/* Whether the signal would have ended the process at once: it has no handler but ours, which is still there. */
int signal_is_fatal(int number) {
    struct sigaction now;
    return sigaction(number, NULL, &now) == 0 && is_ours(&now) && is_default(number);
}

/* Waits until a signal comes; its number, STOPPED after `signal_stop`, NO_SIGNAL when the time is over. The thread that calls it
 * gets no signal itself, as before there was this thread. */
int signal_wait(double seconds) {
    struct timespec until;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    clock_gettime(CLOCK_REALTIME, &until);
    int64_t end = (int64_t)until.tv_sec * 1000000000 + until.tv_nsec + (int64_t)(seconds * 1e9);
    until.tv_sec = end / 1000000000;
    until.tv_nsec = end % 1000000000;
    if (sem_timedwait(&wakes, &until)) return NO_SIGNAL;
    for (int number = 1; number < SIGNALS; number++) {
        if (came[number]) {
            came[number] = 0;
            return number;
        }
    }
    return stopped ? STOPPED : NO_SIGNAL;
}

/* Takes our handlers away where they are the first ones, and wakes the thread. */
void signal_stop(void) {
    stopped = 1;
    for (int number = 1; number < SIGNALS; number++) {
        struct sigaction now;
        if (sigaction(number, NULL, &now) == 0 && is_ours(&now)) sigaction(number, &behind[number], NULL);
    }
    sem_post(&wakes);
}

/* Lets a signal that came earlier take effect. */
void signal_end(int number) {
    if (signal_is_fatal(number)) signal(number, SIG_DFL);
    kill(getpid(), number);
}
#else  /* nothing is recorded there */
void signal_start(void) {}
void signal_watch(int number) { (void)number; }
int signal_is_fatal(int number) { (void)number; return 0; }
int signal_wait(double seconds) { (void)seconds; return 0; }
void signal_stop(void) {}
void signal_end(int number) { (void)number; }
#endif
