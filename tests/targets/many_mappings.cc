// Has nearly as many mappings as the kernel allows (vm.max_map_count). It leaves room for the
// number in argument 1, and for each byte of its input maps and unmaps three more.
#include <sys/mman.h>

#include <vector>

#include "target.hpp"

using namespace target;

static void* map(int protection) {
  return mmap(nullptr, 4096, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

int main(int, char** arguments) {
  std::vector<void*> pages;
  pages.reserve(1 << 20);
  // Adjacent mappings with the same protection would be joined.
  for (int i = 0;; i++) {
    void* page = map(i % 2 ? PROT_READ : PROT_READ | PROT_WRITE);
    if (page == MAP_FAILED) break;
    pages.push_back(page);
  }
  for (int i = atoi(arguments[1]); i > 0; i--) {
    CHECK(munmap(pages.back(), 4096) == 0);
    pages.pop_back();
  }
  say("ready");
  for (char byte; read(0, &byte, 1) == 1;) {
    void* three[] = {map(PROT_READ), map(PROT_NONE), map(PROT_READ | PROT_WRITE)};
    for (void* page : three) CHECK(page != MAP_FAILED && munmap(page, 4096) == 0);
    free(malloc(1000));
    say("mapped");
  }
}
