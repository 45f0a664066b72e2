// A program, and with -DLIBRARY a library, so small that lld and mold put all of its segments into the first page of its
// file. Arguments of the program: a library that it opens at its start, and one that it opens while it is traced.
#include <stdlib.h>
#include <unistd.h>

#ifdef LIBRARY

__attribute__((visibility("default"))) void leak_in_library(int blocks, size_t size) {
  for (int i = 0; i < blocks; i++) {
    void* block = malloc(size);
    __asm__ volatile("" : : "r"(block) : "memory");
  }
}

#else

#include <dlfcn.h>

static void open_and_leak(const char* path, int blocks, size_t size) {
  void* library = dlopen(path, RTLD_NOW);
  if (library == NULL) _exit(3);
  void (*leak)(int, size_t) = (void (*)(int, size_t))dlsym(library, "leak_in_library");
  if (leak == NULL) _exit(4);
  leak(blocks, size);
}

static void say(const char* line, size_t length) {
  if (write(1, line, length) != (ssize_t)length) _exit(9);
}

static void wait_for_byte(void) {
  char byte;
  if (read(0, &byte, 1) < 0) _exit(5);
}

__attribute__((noinline)) static void leak_in_program(int blocks, size_t size) {
  for (int i = 0; i < blocks; i++) {
    void* block = malloc(size);
    __asm__ volatile("" : : "r"(block) : "memory");
  }
}

int main(int count, char** arguments) {
  if (count != 3) return 2;
  void* early = dlopen(arguments[1], RTLD_NOW);
  if (early == NULL) return 3;
  say("ready\n", 6);
  wait_for_byte();
  leak_in_program(7, 96);
  open_and_leak(arguments[1], 21, 200);
  open_and_leak(arguments[2], 22, 300);
  say("done\n", 5);
  wait_for_byte();
  return 0;
}

#endif
