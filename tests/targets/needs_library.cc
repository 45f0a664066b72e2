// A library that is loaded by name through the RUNPATH of the calling library. It is found only if
// dlopen knows its caller.
#include <dlfcn.h>

extern "C" __attribute__((visibility("default"))) void* open_neighbour() {
  void* library = dlopen("liblate.so", RTLD_NOW | RTLD_LOCAL);
  asm volatile("" : : "r"(library) : "memory");  // prevents a tail call, which would hide the caller
  return library;
}
