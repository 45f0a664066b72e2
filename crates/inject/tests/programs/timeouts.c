// Waits with a limit of 40 ms again and again, in the call named by argv[1], for what another thread
// does every 0 to 200 ms. Exits with status 1 as soon as a wait ends too early or with EINTR. Ends well on
// SIGTERM and says how many waits there were, how many of them took the whole time, and by how many
// milliseconds the latest one was late.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

static volatile int done;
static int happened;
static pthread_t waiter;
static void on_term(int s) { (void)s; done = 1; }
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e3 + t.tv_nsec / 1e6; }
static void *disturb(void *how) {
    unsigned seed = 1;
    while (!done) {
        usleep(rand_r(&seed) % 200000);
        if (!strcmp(how, "epoll")) eventfd_write(happened, 1);
        else pthread_kill(waiter, SIGUSR1);
    }
    return NULL;
}

int main(int argc, char **argv) {
    char *how = argv[argc - 1];
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    struct sigaction term = {.sa_handler = on_term};
    sigaction(SIGTERM, &term, NULL);
    int epoll = epoll_create1(0), ended = 0;
    happened = eventfd(0, 0);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(epoll, EPOLL_CTL_ADD, happened, &event);
    waiter = pthread_self();
    pthread_t other;
    if (pthread_create(&other, NULL, disturb, how)) return 9;
    printf("ready\n");
    fflush(stdout);
    long waits = 0, whole = 0;
    double latest = 0;
    struct timespec limit = {0, 40000000};
    while (!done) {
        double begin = now();
        int result;
        if (!strcmp(how, "epoll")) result = epoll_wait(epoll, &event, 1, 40);
        else { result = sigtimedwait(&signals, NULL, &limit); if (result < 0 && errno == EAGAIN) result = 0; }
        double took = now() - begin;
        if (done) break;
        if (result < 0 || (result == 0 && took < 40)) {
            printf("%s: result %d (%s) after %.3f ms\n", how, result, strerror(errno), took);
            ended = 1;
            break;
        }
        if (result == 0 && took - 40 > latest) latest = took - 40;
        eventfd_t value;
        if (result > 0 && !strcmp(how, "epoll")) eventfd_read(happened, &value);
        waits++;
        whole += result == 0;
    }
    done = 1;
    pthread_join(other, NULL);
    if (!ended) printf("%ld waits %ld whole %.1f ms late\n", waits, whole, latest);
    return ended;
}
