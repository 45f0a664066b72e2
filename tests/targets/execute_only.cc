// Opens libraries from its own code and from generated code, neither of which is readable. On
// processors with protection keys, the kernel makes execute-only memory unreadable (mprotect(2)).
// Argument: the path of a library.
#include <dlfcn.h>
#include <sys/mman.h>

#include "target.hpp"

using namespace target;
using Open = void* (*)(const char*, int);

extern "C" char __etext;

// Returns a function that calls its third argument with the first two.
static void* (*made_caller())(const char*, int, Open) {
  // sub $8, %rsp; call *%rdx; add $8, %rsp; ret
  static const unsigned char code[] = {0x48, 0x83, 0xec, 8, 0xff, 0xd2, 0x48, 0x83, 0xc4, 8, 0xc3};
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(page != MAP_FAILED);
  memcpy(page, code, sizeof code);
  CHECK(mprotect(page, 4096, PROT_EXEC) == 0);
  return reinterpret_cast<void* (*)(const char*, int, Open)>(page);
}

int main(int, char** arguments) {
  auto first = reinterpret_cast<size_t>(main) & ~size_t{4095}, last = reinterpret_cast<size_t>(&__etext);
  CHECK(mprotect(reinterpret_cast<void*>(first), last - first, PROT_EXEC) == 0);
  auto through_made_code = made_caller();
  ready();
  // Reads the slot, which now contains the hook's wrapper.
  Open open = dlopen;
  void* own = open(arguments[1], RTLD_NOW);
  void* made = through_made_code(arguments[1], RTLD_NOW, open);
  CHECK(own != nullptr && made == own);
  CHECK(dlclose(made) == 0);
  CHECK(through_made_code("no-such-library.so", RTLD_NOW, open) == nullptr && dlerror() != nullptr);
  auto leak = reinterpret_cast<void* (*)(size_t)>(dlsym(own, "leak_in_library"));
  CHECK(leak != nullptr);
  for (int i = 0; i < 4; i++) keep(leak(300));
  done();
}
