// Opens a library (argument 1) whose constructor is a function of this program and allocates. The
// backtrace leads through the loader and dlopen to the function that called dlopen. With -DLIBRARY,
// this file is that library.
#include <dlfcn.h>

#include "target.hpp"

extern "C" void allocate_below_dlopen();

#ifdef LIBRARY
// The library has no code, because a library that is still loading cannot be unwound.
[[gnu::section(".init_array"), gnu::used]] static void (*const constructor)() = allocate_below_dlopen;
#else
using namespace target;

extern "C" [[gnu::visibility("default"), gnu::noinline]] void allocate_below_dlopen() {
  keep(malloc(4321));
}

// Unwinding works at the `ret` of this function, where neither a register nor the stack pointer
// needs restoring.
extern "C" [[gnu::visibility("default"), gnu::noinline]] int leaf(int number) { return number + 1; }

[[gnu::noinline]] static void opens_here(const char* path) {
  void* library = dlopen(path, RTLD_NOW);
  CHECK(library && leaf(1) == 2);
}

int main(int, char** arguments) {
  ready();
  opens_here(arguments[1]);
  done();
  return 0;
}
#endif
