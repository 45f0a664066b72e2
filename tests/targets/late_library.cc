// A library that is loaded during the trace.
#include <cstdlib>

extern "C" __attribute__((visibility("default"))) void* leak_in_library(size_t size) {
  void* block = malloc(size);
  asm volatile("" : : "r"(block) : "memory");
  return block;
}

// The constructors of a module run before its slots are patched.
extern "C" __attribute__((visibility("default"))) int answer() { return 42; }
