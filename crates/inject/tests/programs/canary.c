// Keeps known values in vector, x87 and general registers, errno and the red zone of a loop that
// makes no call, and exits with status 1 as soon as one of them changes. Ends well on SIGTERM.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <immintrin.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static volatile int done;
static volatile unsigned long rounds;
static void on_term(int s) { (void)s; done = 1; }

// Called remotely: spoils every register that a callee may, and errno.
__attribute__((target("avx2"), noinline)) long spoil(long a, long b, long c, long d, long e, long f) {
    char path[300];
    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = 0;
    if (access(path, F_OK) == 0) return -1;
    __asm__ volatile(
        "vpcmpeqd %%ymm0,%%ymm0,%%ymm0; vpcmpeqd %%ymm7,%%ymm7,%%ymm7; vpcmpeqd %%ymm15,%%ymm15,%%ymm15;"
        "fldpi; fstp %%st(0)" ::: "xmm0", "xmm7", "xmm15");
    return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + (((unsigned long)__builtin_frame_address(0) & 15) ? 1000000 : 0);
}

// Makes blocks for the attacher to release.
static void *planted[600];
static unsigned long released;
__attribute__((noinline)) long plant(void) {
    for (int i = 0; i < 600; i++) planted[i] = malloc(24 + i % 50 * 16);
    return (long)planted;
}
// Called remotely with each block. Exits with status 3 if a block comes twice or is unknown.
__attribute__((noinline)) void release(void *p) {
    for (int i = 0; i < 600; i++)
        if (planted[i] == p) {
            planted[i] = NULL;
            released++;
            free(p);
            return;
        }
    _exit(3);
}

long crash(void) { return *(volatile long *)0x1234; }
long aborts(void) { abort(); }

__attribute__((target("avx2"))) int main(void) {
    signal(SIGTERM, on_term);
    if (getenv("IGNORE_TRAP")) signal(SIGTRAP, SIG_IGN);
    printf("getpid %p\nspoil %p\ncrash %p\naborts %p\n", (void *)getpid, (void *)spoil, (void *)crash, (void *)aborts);
    printf("dlopen %p\nrounds %p\n", dlsym(RTLD_DEFAULT, "dlopen"), (void *)&rounds);
    printf("plant %p\nrelease %p\nreleased %p\n", (void *)plant, (void *)release, (void *)&released);
    puts("ready");
    fflush(stdout);
    unsigned long word = 0x1122334455667788ul;
    unsigned char expected[32];
    for (int i = 0; i < 32; i++) expected[i] = 0xa0 + i;
    errno = 77;
    while (!done) {
        unsigned long bad;
        __asm__ volatile(
            "movq %[word], -8(%%rsp); movq %[word], -120(%%rsp);"
            "vmovdqu %[want], %%ymm0; vmovdqu %[want], %%ymm7; vmovdqu %[want], %%ymm15;"
            "movq %[word], %%r8; movq %[word], %%r15; movq %[word], %%rax; fldpi;"
            "mov $200000, %%ecx; 1: dec %%ecx; jnz 1b;"
            "xor %%ebx, %%ebx;"
            "cmpq %[word], -8(%%rsp); jne 2f; cmpq %[word], -120(%%rsp); jne 2f;"
            "cmpq %[word], %%r8; jne 2f; cmpq %[word], %%r15; jne 2f; cmpq %[word], %%rax; jne 2f;"
            "fldpi; fcomip %%st(1), %%st(0); jne 2f;"
            "vpcmpeqb %[want], %%ymm0, %%ymm0; vpmovmskb %%ymm0, %%ecx; cmp $-1, %%ecx; jne 2f;"
            "vpcmpeqb %[want], %%ymm7, %%ymm7; vpmovmskb %%ymm7, %%ecx; cmp $-1, %%ecx; jne 2f;"
            "vpcmpeqb %[want], %%ymm15, %%ymm15; vpmovmskb %%ymm15, %%ecx; cmp $-1, %%ecx; jne 2f;"
            "jmp 3f; 2: mov $1, %%ebx; 3: fstp %%st(0)"
            : "=&b"(bad)
            : [word] "r"(word), [want] "m"(expected)
            : "rax", "rcx", "r8", "r15", "xmm0", "xmm7", "xmm15", "memory", "cc");
        if (bad || errno != 77) { fprintf(stderr, "canary: bad %lu errno %d\n", bad, errno); return 1; }
        rounds++;
    }
    struct sigaction trap;
    sigaction(SIGTRAP, NULL, &trap);
    if (getenv("IGNORE_TRAP") && trap.sa_handler != SIG_IGN) { fprintf(stderr, "SIGTRAP action changed\n"); return 2; }
    return 0;
}
