// A program that exits while its threads are inside the allocator.
//
//   clean  main returns
//   leaks  main has lost 40 blocks of its own, 8 of them mappings, and 20 blocks that only these
//          point to
//   exit   only the system call, without the C library
//   opened, opened-leaks: as `clean` and `leaks`, after a library was opened, so that some blocks
//   may be untraced
//
// Each thread keeps all its blocks in a table on its stack: blocks of all sizes, and growing arrays
// of pointers to blocks. None of these blocks is leaked, no matter what a thread does when it is
// killed.
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "target.hpp"

using namespace target;

static constexpr int places = 64;

[[noreturn]] static void churn(unsigned seed) {
  void* blocks[places] = {};
  void** arrays[places] = {};
  unsigned lengths[places] = {};
  auto drop = [&](unsigned at) {
    for (unsigned i = 0; i < lengths[at]; i++) free(arrays[at][i]);
    free(arrays[at]);
    arrays[at] = nullptr;
    lengths[at] = 0;
  };
  for (;;) {
    seed = seed * 1103515245 + 12345;
    unsigned at = seed >> 16 & (places - 1), kind = seed >> 24 & 15;
    if (kind < 8) {
      // Occasionally, a block is so large that it gets a separate mapping.
      size_t size = (seed >> 8 & 0x3fff) == 1 ? 300'000 : 16 + (seed >> 8 & 0x1fff);
      if (kind < 4) {
        free(blocks[at]);
        blocks[at] = nullptr;
        blocks[at] = malloc(size);
      } else {
        blocks[at] = realloc(blocks[at], size);
      }
    } else if (lengths[at] < 100) {
      arrays[at] = static_cast<void**>(realloc(arrays[at], (lengths[at] + 1) * sizeof(void*)));
      arrays[at][lengths[at]] = nullptr;
      arrays[at][lengths[at]++] = malloc(16 + (seed >> 8 & 63));
    } else {
      drop(at);
    }
  }
}

__attribute__((noinline)) static void lose() {
  for (int i = 0; i < 40; i++) {
    auto** block = static_cast<void**>(malloc(i < 8 ? 200'000 : 1'000));
    if (i < 20) block[1] = malloc(500);
    keep(block);
  }
}

// Overwrites the remains of returned functions on the stack, which would be references to leaked
// blocks.
__attribute__((noinline)) static void scrub_stack() {
  volatile char frames[4096];
  for (size_t i = 0; i < sizeof frames; i++) frames[i] = 0;
}

int main(int argc, char** argv) {
  const char* mode = argc > 1 ? argv[1] : "clean";
  if (strstr(mode, "opened")) CHECK(dlopen("libutil.so.1", RTLD_NOW));
  if (strstr(mode, "leaks")) {
    lose();
    scrub_stack();
  }
  for (unsigned i = 0; i < 4; i++) std::thread(churn, i * 7919 + 1).detach();
  usleep(50'000);
  if (!strcmp(mode, "exit")) syscall(SYS_exit_group, 0);
  return 0;
}
