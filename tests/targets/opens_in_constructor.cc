// Opens a library (argument 1) whose constructor allocates: the backtrace leads through dlopen to who has called it. With
// -DLIBRARY: that library.
#include <dlfcn.h>

#include "target.hpp"

extern "C" void allocate_below_dlopen();

#ifdef LIBRARY
__attribute__((constructor)) static void construct() {
  allocate_below_dlopen();
  asm volatile("");
}
#else
using namespace target;

extern "C" [[gnu::visibility("default"), gnu::noinline]] void allocate_below_dlopen() {
  keep(malloc(4321));
}

[[gnu::noinline]] static void opens_here(const char* path) {
  void* library = dlopen(path, RTLD_NOW);
  CHECK(library);
}

int main(int, char** arguments) {
  ready();
  opens_here(arguments[1]);
  done();
  return 0;
}
#endif
