// Counts rounds, with a wait in each, while another thread keeps a lock of the loader until the gate is opened: the
// lock of the list, in a callback of dl_iterate_phdr (argument "list"), or that of loading, in a constructor of the
// library that the second argument names. Then it does what needs the loader and all that may lock it: loads, looks
// up a user, makes a thread and a child. Ends well on SIGTERM if all of that worked.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <iconv.h>
#include <link.h>
#include <pthread.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int done, is_open, keeps, works;
static volatile unsigned long rounds;
static void on_term(int s) { (void)s; done = 1; }

static void wait_for_gate(void) {
    keeps = 1;
    while (!is_open && !done) usleep(1000);
}

static int callback(struct dl_phdr_info *info, size_t size, void *data) {
    (void)info, (void)size, (void)data;
    wait_for_gate();
    return 1;
}

static void *nothing(void *arg) { return arg; }

static int all_works(void) {
    void *library = dlopen("libutil.so.1", RTLD_NOW);
    if (!library) library = dlopen("libm.so.6", RTLD_NOW);
    if (!library || dlclose(library)) return 0;
    if (!getpwnam("root")) return 0;
    iconv_t conversion = iconv_open("UTF-16", "LATIN1");
    if (conversion == (iconv_t)-1 || iconv_close(conversion)) return 0;
    pthread_t thread;
    if (pthread_create(&thread, NULL, nothing, NULL) || pthread_join(thread, NULL)) return 0;
    pid_t child = fork();
    if (child == 0) _exit(dlopen("libm.so.6", RTLD_NOW) ? 0 : 1);
    int status;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

static void *keep(void *library) {
    if (library) {
        // Its constructor calls what it finds by the name of a function of this program.
        if (!dlopen(library, RTLD_NOW)) fprintf(stderr, "%s\n", dlerror());
    } else {
        dl_iterate_phdr(callback, NULL);
    }
    works = all_works() ? 1 : 2;
    return NULL;
}

// The library has its address from the environment, because this program exports nothing.
static void offer(void) {
    static char variable[64];
    snprintf(variable, sizeof variable, "WAIT_FOR_GATE=%lx", (unsigned long)wait_for_gate);
    putenv(variable);
}

int main(int argc, char **argv) {
    pthread_t keeper;
    signal(SIGTERM, on_term);
    offer();
    if (pthread_create(&keeper, NULL, keep, argc > 2 ? argv[2] : NULL)) return 9;
    while (!keeps) usleep(1000);
    printf("dlopen %p\nis_open %p\nworks %p\nrounds %p\nready\n", (void *)dlopen, (void *)&is_open, (void *)&works,
           (void *)&rounds);
    fflush(stdout);
    while (!done) {
        errno = 77;
        usleep(2000);
        if (errno != 77 && errno != EINTR) return 1;
        rounds++;
    }
    pthread_join(keeper, NULL);
    return works == 1 && all_works() ? 0 : 2;
}
