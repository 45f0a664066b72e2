// Runs four threads that allocate all the time; ends well on SIGTERM. With "exits", there are four chains of
// threads, each of which starts its successor and ends. The handler of SIGTERM wakes
// the main thread through a pipe, because any thread may get the signal.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

static volatile int done;
static int wake[2];
static void on_term(int s) { (void)s; done = 1; if (wake[1] && write(wake[1], "x", 1)) return; }
static void *hammer(void *arg) {
    void *blocks[64] = {0};
    for (unsigned i = 0; !done; i++) { free(blocks[i & 63]); blocks[i & 63] = malloc(i % 4096); }
    for (int i = 0; i < 64; i++) free(blocks[i]);
    return arg;
}
// Runs for a moment, starts its successor, and ends.
static void *brief(void *arg) {
    // Some live for less time than it takes to stop them, some for more.
    static volatile unsigned count;
    int rounds = 20000 << count++ % 7;
    for (volatile int i = 0; i < rounds; i++);
    pthread_t next;
    if (!done && pthread_create(&next, NULL, brief, arg) == 0) pthread_detach(next);
    return arg;
}

int main(int argc, char **argv) {
    signal(SIGTERM, on_term);
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    printf("malloc %p\n", dlsym(libc, "malloc"));
    printf("dlopen %p\ngetpid %p\nready\n", dlsym(libc, "dlopen"), dlsym(libc, "getpid"));
    fflush(stdout);
    pthread_t threads[4];
    if (argc > 1 && !strcmp(argv[1], "exits")) {
        if (pipe(wake)) return 9;
        for (int i = 0; i < 4; i++) { pthread_create(&threads[i], NULL, brief, NULL); pthread_detach(threads[i]); }
        // A stop disturbs this call, so the other threads are preferred.
        struct epoll_event out, in = {.events = EPOLLIN};
        int epoll = epoll_create1(0);
        epoll_ctl(epoll, EPOLL_CTL_ADD, wake[0], &in);
        while (!done) epoll_wait(epoll, &out, 1, -1);
        usleep(20000);
        return 0;
    }
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, hammer, NULL);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    return 0;
}
