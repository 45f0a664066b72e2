// Opens a library. In the middle of a trace it closes the library and maps other memory at its
// address. The new memory contains the bytes of the traced library, first as data, then as code.
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdint>

#include "target.hpp"

using namespace target;

constexpr size_t page = 4096;

int main(int, char** arguments) {
  void* library = dlopen(arguments[1], RTLD_NOW);
  CHECK(library);
  auto alloc = reinterpret_cast<void* (*)(size_t)>(dlsym(library, "pool_alloc"));
  auto release = reinterpret_cast<void (*)(void*)>(dlsym(library, "pool_free"));
  CHECK(alloc && release);
  ready();
  void* kept[20];
  for (auto& block : kept) block = alloc(40);
  for (int i = 0; i < 5; i++) release(kept[i]);
  auto* at = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(alloc) & ~(page - 1));
  static char copy[page];
  memcpy(copy, at, page);
  CHECK(dlclose(library) == 0);
  // The library is closed, so nothing is mapped at its address.
  unsigned char is_there;
  CHECK(mincore(at, page, &is_there) == -1 && errno == ENOMEM);
  void* own = mmap(at, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  CHECK(own == at);
  memcpy(at, copy, page);
  if (arguments[2]) CHECK(mprotect(at, page, PROT_READ | PROT_EXEC) == 0);
  done();
  CHECK(memcmp(at, copy, page) == 0);
  return 0;
}
