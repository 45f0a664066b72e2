// Opened with RTLD_DEEPBIND, so its calls of malloc reach its own allocator.
#include <string.h>

#include "allocator.c"

__attribute__((noinline)) static void leak_in_library(void) {
  for (int i = 0; i < 30; i++) {
    void* block = malloc(2000);
    // Without this line, the compiler merges the two calls into a calloc of the other allocator.
    __asm__ volatile("" : "+r"(block) : : "memory");
    memset(block, 0, 2000);
  }
}

__attribute__((visibility("default"))) void work(void) { leak_in_library(); }
