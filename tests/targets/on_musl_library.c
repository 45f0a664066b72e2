// A library that a program on musl opens.
#include <stdlib.h>

void leak_in_library(void) {
  void* block = malloc(56);
  __asm__ volatile("" : : "r"(block) : "memory");
}
