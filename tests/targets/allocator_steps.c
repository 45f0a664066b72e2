// Allocates and releases blocks, for a test that single-steps it and searches its heap in between. First it leaks
// blocks of all sizes. It compiles as C for musl, and as C++ through allocator_steps.cc, with any allocator. A second
// thread sleeps, so that the allocator takes its locks.
//
// Protocol: "ready". The answer to the first byte on standard input lists the leaked blocks as "lost ADDRESS", followed
// by "done". Each further byte starts some operations, followed by "done": 'm' allocates and releases blocks of all
// sizes at random, 's' fills many small slots, empties most of them, and refills them, and 'l' leaks one more block.
// 'j' makes the thread jump to its own address for ever. The program exits at the end of input.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEPT = 40, LOST = 24, SMALL = 40, OPERATIONS = 40 };

static const size_t sizes[] = {20, 200, 650, 1500, 90, 5000, 340, 60000, 480, 30, 200000, 15000};
enum { SIZES = sizeof sizes / sizeof *sizes };

// Addresses are stored inverted, so that no search mistakes them for pointers.
static uintptr_t lost[LOST];
static void* kept[KEPT];
static void* small[SMALL];

static void say(const char* text) {
  if (write(1, text, strlen(text)) < 0) _exit(1);
}

__attribute__((noinline)) static void lose(int count) {
  for (int i = 0; i < count; i++) {
    void* block = malloc(sizes[i % SIZES]);
    memset(block, 1, sizes[i % SIZES]);
    lost[i] = ~(uintptr_t)block;
  }
}

__attribute__((noinline)) static void scrub_stack(void) {
  char room[16384];
  memset(room, 0, sizeof room);
  __asm__ volatile("" ::"r"(room) : "memory");
}

__attribute__((noinline)) static void operate(unsigned* seed) {
  *seed = *seed * 1103515245u + 12345u;
  unsigned number = *seed / 65536;
  void** place = &kept[number % KEPT];
  if (*place) {
    void* block = *place;
    *place = NULL;
    free(block);
  } else {
    size_t bytes = sizes[number / KEPT % SIZES];
    *place = bytes < 500 && number / KEPT / SIZES % 2 ? calloc(1, bytes) : malloc(bytes);
  }
}

__attribute__((noinline)) static void fill(int every) {
  for (int i = 0; i < SMALL; i++) {
    if (i % every != 0) {
      void* block = small[i];
      small[i] = NULL;
      free(block);
    }
  }
  for (int i = 0; i < SMALL; i++) {
    if (!small[i]) small[i] = malloc(20);
  }
}

static void* sleeps(void* unused) {
  pause();
  return unused;
}

int main(void) {
  pthread_t thread;
  unsigned seed = 1;
  lose(LOST);
  for (int i = 0; i < KEPT; i++) operate(&seed);
  fill(SMALL);
  if (pthread_create(&thread, NULL, sleeps, NULL)) return 1;
  scrub_stack();
  say("ready\n");
  char byte;
  if (read(0, &byte, 1) != 1) return 1;
  for (int i = 0; i < LOST; i++) {
    char line[64];
    snprintf(line, sizeof line, "lost %#lx\n", (unsigned long)~lost[i]);
    say(line);
    memset(line, 0, sizeof line);
    __asm__ volatile("" ::"r"(line) : "memory");
  }
  scrub_stack();
  say("done\n");
  while (read(0, &byte, 1) == 1) {
    if (byte == 's') fill(8);
    if (byte == 'l') lose(1), scrub_stack();
    if (byte == 'j') __asm__ volatile("1: jmp 1b");
    for (int i = 0; byte == 'm' && i < OPERATIONS; i++) operate(&seed);
    say("done\n");
  }
  return 0;
}
