// One thread closes all descriptors above 2, whosever they are, and opens a file of its own again and again, whose four
// bytes must stay as they are. Ends well on SIGTERM if they have.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile int done;
static void on_term(int s) { (void)s; done = 1; }

static void *closes(void *path) {
    for (;;) {
        int file = open(path, O_RDWR);
        struct stat found;
        char bytes[4];
        if (file >= 0 && (fstat(file, &found) != 0 || found.st_size != 4 || pread(file, bytes, 4, 0) != 4 ||
                          memcmp(bytes, "mine", 4) != 0))
            _exit(7);
        syscall(SYS_close_range, 3, ~0u, 0);
    }
    return path;
}

int main(int argc, char **argv) {
    (void)argc;
    signal(SIGTERM, on_term);
    int file = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (write(file, "mine", 4) != 4) return 8;
    close(file);
    pthread_t thread;
    pthread_create(&thread, NULL, closes, argv[1]);
    printf("dlopen %p\nready\n", (void *)dlopen);
    fflush(stdout);
    while (!done) usleep(1000);
    return 0;
}
