// Opens the libraries that its arguments name, one for each byte that it reads, and leaks 50 blocks in each library.
#include <dlfcn.h>

#include "target.hpp"

using namespace target;
using Leak = void* (*)(size_t);

int main(int count, char** arguments) {
  ready();
  for (int i = 1; i < count; i++) {
    void* library = dlopen(arguments[i], RTLD_NOW);
    CHECK(library != nullptr);
    auto leak = reinterpret_cast<Leak>(dlsym(library, "leak_in_library"));
    CHECK(leak != nullptr);
    for (int j = 0; j < 50; j++) keep(leak(500));
    done();
  }
}
