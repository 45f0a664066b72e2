#include <stdlib.h>

__attribute__((visibility("default"))) void leak_in_library(int blocks, size_t size) {
  for (int i = 0; i < blocks; i++) {
    void* block = malloc(size);
    __asm__ volatile("" : : "r"(block) : "memory");
  }
}
