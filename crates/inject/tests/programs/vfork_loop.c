// One thread is the parent of vfork(2) all the time: each child lives for .7 s. Two others are always busy, and measure
// the longest time during which they neither ran nor waited for a processor: that is how long somebody held them. It is
// at `longest`, in nanoseconds.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static volatile long longest;

static void *forks(void *unused) {
    for (;;) {
        if (vfork() == 0) {
            struct timespec time = {0, 700000000};
            nanosleep(&time, NULL);
            _exit(0);
        }
    }
    return unused;
}

static void *measures(void *unused) {
    int file = open("/proc/thread-self/schedstat", O_RDONLY);
    long before = 0;
    for (;;) {
        char text[128] = {0};
        long ran = 0, waited = 0;
        struct timespec now;
        if (pread(file, text, sizeof text - 1, 0) <= 0 || sscanf(text, "%ld %ld", &ran, &waited) != 2) abort();
        clock_gettime(CLOCK_MONOTONIC, &now);
        // It grows by what the thread stood still.
        long still = now.tv_sec * 1000000000 + now.tv_nsec - ran - waited;
        if (before && still - before > longest) longest = still - before;
        before = still;
    }
    return unused;
}

int main(void) {
    pthread_t threads[3];
    pthread_create(&threads[0], NULL, forks, NULL);
    pthread_create(&threads[1], NULL, measures, NULL);
    pthread_create(&threads[2], NULL, measures, NULL);
    printf("longest %p\nready\n", (void *)&longest);
    fflush(stdout);
    for (;;) pause();
}
