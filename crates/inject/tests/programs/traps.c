// Gets one synchronous signal after the other, and counts those whose handler has not run when the call or instruction is
// over. Prints both counts at SIGTERM.
#define _GNU_SOURCE
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/ucontext.h>
#include <unistd.h>

#define ANSWER 0x5eed
static volatile unsigned long rounds, lost, taken;
static volatile int done;
static volatile char selector; // SYSCALL_DISPATCH_FILTER_ALLOW

// It returns by a system call.
static void on_term(int s) { (void)s; selector = 0; done = 1; }
static void count(int s) { (void)s; taken++; }
static void answer(int s, siginfo_t *info, void *context) {
    (void)s;
    selector = 0;
    taken++;
    if (info->si_syscall == SYS_getppid)
        ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = ANSWER;
}

static long ask(void) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_getppid) : "rcx", "r11", "memory");
    return result;
}

static void catch(int s, void (*f)(int)) {
    struct sigaction a = {.sa_handler = f, .sa_flags = SA_RESTART};
    sigaction(s, &a, NULL);
}

// SECCOMP_RET_TRAP, as Chromium's and Firefox's sandboxes use it.
static void filtered(void) { lost += ask() != ANSWER; }
static void breakpoint(void) {
    unsigned long before = taken;
    __asm__ volatile("int3");
    lost += taken != before + 1;
}
static void raised(void) {
    unsigned long before = taken;
    raise(SIGABRT);
    lost += taken != before + 1;
}
static void killed(void) {
    unsigned long before = taken;
    kill(getpid(), SIGABRT);
    lost += taken != before + 1;
}
// Blocked signals wait for as long as the program likes.
static void blocked(void) {
    sigset_t set, waiting;
    unsigned long before = taken;
    sigemptyset(&set);
    for (int i = 0; i < 2; i++) sigaddset(&set, i ? SIGABRT : SIGTRAP);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    raise(SIGTRAP);
    kill(getpid(), SIGABRT);
    for (int i = 0; i < 200 && !done; i++) {
        sigpending(&waiting);
        if (!sigismember(&waiting, SIGABRT) || !sigismember(&waiting, SIGTRAP) || taken != before) { lost++; break; }
    }
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    lost += taken != before + 2;
}
// prctl(2), PR_SET_SYSCALL_USER_DISPATCH, as Wine uses it. The handler allows calls again.
static void dispatched(void) {
    selector = 1;
    lost += ask() != ANSWER && !done;
}

static pthread_t first;
static void *send(void *no) {
    (void)no;
    while (!done) {
        unsigned long before = taken;
        pthread_kill(first, SIGABRT);
        while (taken == before && !done) sched_yield();
    }
    return NULL;
}
static void sent(void) { for (volatile int i = 0; i < 100; i++); }

int main(int argc, char **argv) {
    static const struct { const char *name; void (*once)(void); } KINDS[] = {
        {"filtered", filtered}, {"breakpoint", breakpoint}, {"raised", raised},     {"killed", killed},
        {"blocked", blocked},   {"dispatched", dispatched}, {"sent", sent},
    };
    const char *name = argc > 1 ? argv[1] : "";
    void (*once)(void) = NULL;
    for (unsigned i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
        if (!strcmp(KINDS[i].name, name)) once = KINDS[i].once;
    if (!once) return 2;
    struct sigaction a = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGSYS, &a, NULL);
    catch(SIGABRT, count);
    catch(SIGTRAP, count);
    catch(SIGTERM, on_term);
    if (once == filtered) {
        struct sock_filter filter[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 3;
    }
    if (once == dispatched && prctl(59 /* PR_SET_SYSCALL_USER_DISPATCH */, 1, 0, 0, &selector)) return 3;
    pthread_t other;
    first = pthread_self();
    if (once == sent) pthread_create(&other, NULL, send, NULL);
    printf("getpid %p\nrounds %p\nready\n", (void *)getpid, (void *)&rounds);
    fflush(stdout);
    while (!done) { once(); rounds++; }
    if (once == sent) pthread_join(other, NULL);
    printf("%lu rounds, %lu lost\n", rounds, lost);
    return !rounds || lost;
}
