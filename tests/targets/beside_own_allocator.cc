// Uses libc's allocator and loads a library with a private allocator. Argument 1: path of the
// library.
#include <dlfcn.h>

#include "target.hpp"

using namespace target;

[[gnu::noinline]] static void leak_outside() { keep(malloc(223)); }

int main(int, char** arguments) {
  void* library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  CHECK(library != nullptr);
  auto work_inside = reinterpret_cast<bool (*)()>(dlsym(library, "work_inside"));
  CHECK(work_inside != nullptr);
  ready();
  CHECK(work_inside());
  for (int i = 0; i < 6; i++) leak_outside();
  CHECK(work_inside());
  done();
}
