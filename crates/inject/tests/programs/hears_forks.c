// Registers memory with a userfaultfd that hears of forks (UFFD_FEATURE_EVENT_FORK), and counts rounds. A thread reads of
// the first fork, and never of those of the child; so a child that forks waits for ever.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile unsigned long rounds;
static volatile int done;
static int userfault;
static void on_term(int s) { (void)s; done = 1; }

static void *handle(void *none) {
    struct uffd_msg message;
    while (read(userfault, &message, sizeof message) == sizeof message) {}
    return none;
}

int main(void) {
    signal(SIGTERM, on_term);
    userfault = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_EVENT_FORK};
    if (userfault < 0 || ioctl(userfault, UFFDIO_API, &api)) { printf("none\n"); return 0; }
    void *memory = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register area = {.range = {(unsigned long)memory, 1 << 20}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (ioctl(userfault, UFFDIO_REGISTER, &area)) return 2;
    pthread_t thread;
    pthread_create(&thread, NULL, handle, NULL);
    printf("rounds %p\nready\n", (void *)&rounds);
    fflush(stdout);
    while (!done) { usleep(1000); rounds++; }
    return 0;
}
