// Leaks blocks of its own C library, and of a second copy of it in a separate namespace.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void* (*malloc_of_copy)(size_t);

static void say(const char* line) {
  if (write(1, line, strlen(line)) < 0) _exit(9);
}

static void wait_for_byte(void) {
  char byte;
  if (read(0, &byte, 1) < 0) _exit(9);
}

static void lose(void* block, size_t bytes) {
  if (!block) _exit(8);
  memset(block, 0, bytes);
  __asm__ volatile("" : : "r"(block) : "memory");
}

__attribute__((noinline)) static void leak_in_program(void) {
  for (int i = 0; i < 50; i++) lose(malloc(1000), 1000);
}

__attribute__((noinline)) static void leak_in_copy(void) {
  for (int i = 0; i < 70; i++) lose(malloc_of_copy(3000), 3000);
}

// Clears leftovers of the loops in registers and on the stack, which would keep blocks alive.
__attribute__((noinline)) static void scrub(void) {
  char room[4096];
  memset(room, 0, sizeof room);
  __asm__ volatile("" : : "r"(room) : "memory");
}

int main(void) {
  void* copy = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
  malloc_of_copy = copy ? (void* (*)(size_t))dlsym(copy, "malloc") : NULL;
  if (!malloc_of_copy) return 7;
  say("ready\n");
  wait_for_byte();
  leak_in_program();
  leak_in_copy();
  scrub();
  say("done\n");
  wait_for_byte();
  return 0;
}
