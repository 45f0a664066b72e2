// Opens libraries during the trace: repeatedly, through $ORIGIN, and in a separate namespace.
// Arguments: path of liblate.so, path of libneeds.so.
#include <dlfcn.h>

#include "target.hpp"

using namespace target;
using Leak = void* (*)(size_t);
using Open = void* (*)();

static Leak leak_of(void* library) {
  CHECK(library != nullptr);
  auto leak = reinterpret_cast<Leak>(dlsym(library, "leak_in_library"));
  CHECK(leak != nullptr);
  return leak;
}

int main(int, char** arguments) {
  ready();
  // Opens one library repeatedly, possibly at the same address. No state of the previous load may
  // remain.
  for (int i = 0; i < 10; i++) {
    void* library = dlopen(arguments[1], RTLD_NOW);
    keep(leak_of(library)(500));
    CHECK(dlclose(library) == 0);
  }
  void* library = dlopen(arguments[1], RTLD_LAZY);
  for (int i = 0; i < 5; i++) keep(leak_of(library)(600));
  // The library is found through the RUNPATH ($ORIGIN) of the library that calls dlopen, not of the
  // program.
  void* needs = dlopen(arguments[2], RTLD_NOW);
  CHECK(needs != nullptr);
  auto open = reinterpret_cast<Open>(dlsym(needs, "open_neighbour"));
  CHECK(open != nullptr && open() != nullptr);
  // Loads another copy of libc, so that one process has two allocators.
  void* apart = dlmopen(LM_ID_NEWLM, arguments[1], RTLD_NOW);
  for (int i = 0; i < 3; i++) keep(leak_of(apart)(700));
  CHECK(dlclose(apart) == 0);
  CHECK(dlopen("no-such-library.so", RTLD_NOW) == nullptr && dlerror() != nullptr);
  done();
}
