// Sleeps uninterruptibly, as the parent of a vfork(2), until somebody ends the child, and then counts rounds. Says "heard"
// when SIGUSR1 has come. Ends well on SIGTERM.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static volatile int done, heard;
static volatile unsigned long rounds;
static void on_term(int s) { (void)s; done = 1; }
static void on_usr1(int s) { (void)s; heard = 1; }

int main(void) {
    signal(SIGTERM, on_term);
    signal(SIGUSR1, on_usr1);
    printf("rounds %p\nready\n", (void *)&rounds);
    fflush(stdout);
    pid_t child = vfork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        struct timespec longer_than_any_test = {3600, 0};
        nanosleep(&longer_than_any_test, NULL);
        _exit(0);
    }
    int said = 0;
    while (!done) {
        rounds++;
        if (heard && !said) { said = 1; puts("heard"); fflush(stdout); }
        usleep(1000);
    }
    return child < 0;
}
