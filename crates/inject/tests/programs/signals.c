// Counts queued SIGRTMIN and their values, prints both at SIGTERM.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static volatile long count, sum;
static volatile int done;
static void on_rt(int s, siginfo_t *info, void *c) { (void)s; (void)c; count++; sum += info->si_value.sival_int; }
static void on_term(int s) { (void)s; done = 1; }

int main(void) {
    struct sigaction a = {.sa_sigaction = on_rt, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGRTMIN, &a, NULL);
    signal(SIGTERM, on_term);
    printf("getpid %p\nready\n", (void *)getpid);
    fflush(stdout);
    while (!done) { for (volatile int i = 0; i < 1000; i++); }
    printf("%ld %ld\n", count, sum);
    return 0;
}
