// Opened with RTLD_DEEPBIND, its calls of malloc lead to the allocator that it brings.
#include <string.h>

#include "allocator.c"

__attribute__((noinline)) static void leak_in_library(void) {
  for (int i = 0; i < 30; i++) {
    void* block = malloc(2000);
    // Or the compiler makes a calloc of the two, which is another allocator's.
    __asm__ volatile("" : "+r"(block) : : "memory");
    memset(block, 0, 2000);
  }
}

__attribute__((visibility("default"))) void work(void) { leak_in_library(); }
