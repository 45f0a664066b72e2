// A library that is loaded while its program is traced.
#include <cstdlib>

extern "C" __attribute__((visibility("default"))) void* leak_in_library(size_t size) {
  void* block = malloc(size);
  asm volatile("" : : "r"(block) : "memory");
  return block;
}

// In a module's constructors its slots are not patched yet.
extern "C" __attribute__((visibility("default"))) int answer() { return 42; }
