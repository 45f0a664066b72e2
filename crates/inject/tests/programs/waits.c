// Waits again and again in the call named by the last argument, 3 ms each time or as many as the one before
// says, and counts the rounds. Exits with status 1 as soon as a wait ends early or with an error. EINTR from epoll_wait is
// only counted, because the kernel decides on it at the stop, before any tracer can act. Ends well on SIGTERM.
// With "signals" it waits for SIGUSR1 in epoll_wait without a limit.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdlib.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile int done;
static volatile unsigned long rounds, interrupted;
static int ends[2];
static void on_term(int s) { (void)s; done = 1; }
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e3 + t.tv_nsec / 1e6; }
// Called remotely; sets errno to a value of its own.
__attribute__((noinline)) long spoil(long a) { errno = 5; return a; }
static void on_usr1(int s) { (void)s; }
static void *feed(void *arg) {
    while (!done) { usleep(3000); if (write(ends[1], "x", 1) != 1) break; }
    return arg;
}

int main(int argc, char **argv) {
    const char *how = argv[argc - 1];
    struct sigaction usr1 = {.sa_handler = on_usr1}, term = {.sa_handler = on_term};
    sigaction(SIGUSR1, &usr1, NULL);
    sigaction(SIGTERM, &term, NULL);
    int epoll = epoll_create1(0), word = 5;
    struct epoll_event event;
    long ms = argc > 2 ? atol(argv[1]) : 3;
    struct timespec limit = {0, ms * 1000000};
    pthread_t feeder;
    int feeds = !strcmp(how, "read");
    if (feeds && (pipe(ends) || pthread_create(&feeder, NULL, feed, NULL))) return 9;
    printf("getpid %p\nspoil %p\n", (void *)getpid, (void *)spoil);
    printf("dlopen %p\nrounds %p\n", dlsym(RTLD_DEFAULT, "dlopen"), (void *)&rounds);
    printf("interrupted %p\nready\n", (void *)&interrupted);
    fflush(stdout);
    while (!done) {
        double begin = now();
        char byte;
        long result = -9, wanted = 0;
        int error = 0, timed = 1;
        errno = 77;
        if (!strcmp(how, "nanosleep")) result = nanosleep(&limit, NULL);
        else if (!strcmp(how, "futex")) { result = syscall(SYS_futex, &word, FUTEX_WAIT, 5, &limit, 0, 0); wanted = -1; error = ETIMEDOUT; }
        else if (!strcmp(how, "poll")) { struct pollfd none = {-1, POLLIN, 0}; result = poll(&none, 1, ms); }
        else if (!strcmp(how, "epoll")) result = epoll_wait(epoll, &event, 1, ms);
        else if (!strcmp(how, "signals")) { result = epoll_wait(epoll, &event, 1, -1); wanted = -1; error = EINTR; timed = 0; }
        else if (feeds) { result = read(ends[0], &byte, 1); wanted = 1; timed = 0; }
        int e = errno;
        double took = now() - begin;
        if (done) break;
        if (!strcmp(how, "epoll") && result == -1 && e == EINTR) { interrupted++; continue; }
        if (result != wanted || e != (error ? error : 77) || (timed && took < ms - 0.1)) {
            fprintf(stderr, "%s: result %ld (%s) after %.2f ms in round %lu\n", how, result, strerror(e), took, rounds);
            return 1;
        }
        rounds++;
    }
    if (feeds) pthread_join(feeder, NULL);
    return 0;
}
