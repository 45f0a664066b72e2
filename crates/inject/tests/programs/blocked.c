// Blocks in the call named by argv[1]. Exits with status 1 if the call ends early, with EINTR or with another error.
// Finite waits last 400 ms; infinite ones end when the parent writes to stdin.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e3 + t.tv_nsec / 1e6; }
static void nothing(int s) { (void)s; }

int main(int argc, char **argv) {
    const char *how = argv[1];
    if (argc > 2) { struct sigaction a = {.sa_handler = nothing}; sigaction(SIGUSR1, &a, NULL); }
    int epoll = epoll_create1(0), pipes[2];
    struct epoll_event in = {.events = EPOLLIN}, out;
    epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &in);
    if (pipe(pipes)) return 9;
    printf("getpid %p\nready\n", (void *)getpid);
    fflush(stdout);
    double begin = now();
    long result = -9, wanted = 0;
    int error = 0, finite = 1;
    struct timespec limit = {0, 400000000};
    char byte;
    errno = 0;
    if (!strcmp(how, "nanosleep")) result = nanosleep(&limit, NULL);
    else if (!strcmp(how, "clock_nanosleep")) result = clock_nanosleep(CLOCK_MONOTONIC, 0, &limit, NULL);
    else if (!strcmp(how, "poll")) { struct pollfd p = {pipes[0], POLLIN, 0}; result = poll(&p, 1, 400); }
    else if (!strcmp(how, "ppoll")) { struct pollfd p = {pipes[0], POLLIN, 0}; sigset_t none; sigemptyset(&none); result = ppoll(&p, 1, &limit, &none); }
    else if (!strcmp(how, "select")) { struct timeval t = {0, 400000}; result = select(0, 0, 0, 0, &t); }
    else if (!strcmp(how, "futex")) { int word = 5; result = syscall(SYS_futex, &word, FUTEX_WAIT, 5, &limit, 0, 0); wanted = -1; error = ETIMEDOUT; }
    else if (!strcmp(how, "epoll_finite")) { epoll_ctl(epoll, EPOLL_CTL_DEL, 0, &in); result = epoll_wait(epoll, &out, 1, 400); }
    else if (!strcmp(how, "epoll_pwait2")) { epoll_ctl(epoll, EPOLL_CTL_DEL, 0, &in); result = syscall(SYS_epoll_pwait2, epoll, &out, 1, &limit, NULL, 0); finite = 2; }
    else if (!strcmp(how, "sigtimedwait")) { sigset_t set; sigemptyset(&set); sigaddset(&set, SIGUSR2); sigprocmask(SIG_BLOCK, &set, NULL); result = sigtimedwait(&set, NULL, &limit); wanted = -1; error = EAGAIN; finite = 2; }
    else if (!strcmp(how, "recv_timeout")) { int s[2]; socketpair(AF_UNIX, SOCK_STREAM, 0, s); struct timeval t = {0, 400000}; setsockopt(s[0], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t); result = recv(s[0], &byte, 1, 0); wanted = -1; error = EAGAIN; finite = 2; }
    else if (!strcmp(how, "epoll_infinite")) { result = epoll_wait(epoll, &out, 1, -1); wanted = 1; finite = 0; }
    else if (!strcmp(how, "read")) { result = read(0, &byte, 1); wanted = 1; finite = 0; }
    else if (!strcmp(how, "semop")) { int id = semget(IPC_PRIVATE, 1, 0600); struct sembuf b = {0, -1, 0}; struct timespec t = limit; result = semtimedop(id, &b, 1, &t); int e = errno; semctl(id, 0, IPC_RMID); errno = e; wanted = -1; error = EAGAIN; finite = 2; }
    double took = now() - begin;
    int e = result < 0 ? errno : 0;
    // A wait that starts anew may be late, but never early.
#ifdef LATE_IS_FINE
    finite = finite ? 2 : 0;
#endif
    int late = finite == 1 && took > (strncmp(how, "epoll", 5) ? 480 : 600);
    int wrong = result != wanted || e != error || (finite && took < 399) || late;
    if (argc > 2) wrong = result != -1 || e != EINTR;
    printf("%s: result %ld (%s) after %.1f ms, %s\n", how, result, strerror(e), took, wrong ? "wrong" : "right");
    fflush(stdout);
    return wrong;
}
