// Counts rounds, with a wait in each. `enter` waits until another thread opens a gate, with a lock held on the way, as
// functions of allocators do. Ends well on SIGTERM if every entry has left again.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static volatile int done, is_open, entered, left;
static volatile unsigned long rounds;
static pthread_mutex_t outer = PTHREAD_MUTEX_INITIALIZER, inner = PTHREAD_MUTEX_INITIALIZER;
static void on_term(int s) { (void)s; done = 1; }

// Called remotely.
__attribute__((noinline)) long enter(long a) {
    errno = 5;
    pthread_mutex_lock(&outer);
    entered++;
    pthread_mutex_lock(&inner);
    left++;
    pthread_mutex_unlock(&inner);
    pthread_mutex_unlock(&outer);
    return a;
}

static void *keep(void *arg) {
    pthread_mutex_lock(&inner);
    while (!is_open && !done) usleep(1000);
    pthread_mutex_unlock(&inner);
    return arg;
}

int main(void) {
    pthread_t keeper;
    signal(SIGTERM, on_term);
    if (pthread_create(&keeper, NULL, keep, NULL)) return 9;
    usleep(20000);
    printf("enter %p\nis_open %p\nentered %p\nleft %p\nrounds %p\nready\n", (void *)enter, (void *)&is_open,
           (void *)&entered, (void *)&left, (void *)&rounds);
    fflush(stdout);
    while (!done) {
        errno = 77;
        usleep(2000);
        if (errno != 77 && errno != EINTR) return 1;
        rounds++;
    }
    pthread_join(keeper, NULL);
    return entered == left ? 0 : 2;
}
