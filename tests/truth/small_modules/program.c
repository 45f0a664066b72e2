#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

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

static void leak_in(void* library, const char* name, int blocks, size_t size) {
  void (*leak)(int, size_t) = library ? (void (*)(int, size_t))dlsym(library, name) : NULL;
  if (leak == NULL) _exit(4);
  leak(blocks, size);
}

// Opens one of its two libraries before the trace, and one during it.
int main(int count, char** arguments) {
  if (count != 3) return 2;
  void* library = dlopen(arguments[1], RTLD_NOW);
  say("ready\n", 6);
  wait_for_byte();
  leak_in_program(7, 96);
  leak_in(library, "leak_in_library", 21, 200);
  leak_in(dlopen(arguments[2], RTLD_NOW), "leak_in_late_library", 22, 300);
  say("done\n", 5);
  wait_for_byte();
  return 0;
}
