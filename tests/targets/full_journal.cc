// Has more pointers to malloc than a trace can record. After "ready" it repeatedly opens and closes
// the library in argument 1 until this is quick. Until then, its dlopen waits half a second for an
// attacher that does not answer.
#include <dlfcn.h>

#include <chrono>

#include "target.hpp"

using namespace target;

// One relocation for each pointer.
asm(".pushsection .data\n"
    ".balign 8\n"
    "pointers: .rept 33000\n"
    ".quad malloc\n"
    ".endr\n"
    ".popsection\n");

int main(int, char** arguments) {
  keep(malloc(10));
  ready();
  bool was_quick = false;
  for (int i = 0; i < 40 && !was_quick; i++) {
    auto begin = std::chrono::steady_clock::now();
    void* library = dlopen(arguments[1], RTLD_NOW);
    was_quick = std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(400);
    CHECK(library && dlclose(library) == 0);
  }
  CHECK(was_quick);
  done();
  return 0;
}
