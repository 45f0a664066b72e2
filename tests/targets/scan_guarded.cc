// Blocks that contain inaccessible pages, as in programs that test their own bounds: in the main
// heap, in the heap of a thread, and in separate mappings. It plants 50 blocks of each kind, and
// leaks every other block. With argument 1 "wait", it waits for the end of standard input;
// otherwise it ends immediately.
#include <sys/mman.h>

#include <cstdint>
#include <thread>

#include "target.hpp"

using namespace target;

static void* volatile kept[3][50];

// Overwrites returned frames, so that no block address remains in them.
[[gnu::noinline]] static void wipe() {
  char bytes[16'384];
  memset(bytes, 0, sizeof bytes);
  keep(bytes);
}

[[gnu::noinline]] static void guarded(size_t bytes, bool touched, void* volatile* place) {
  auto* block = static_cast<char*>(malloc(bytes));
  if (touched) memset(block, 0, bytes);
  auto page = (reinterpret_cast<uintptr_t>(block) + 4095) & ~uintptr_t{4095};
  if (mprotect(reinterpret_cast<void*>(page), 4096, PROT_NONE) != 0) _exit(9);
  if (place) *place = block;
  keep(block);
}

[[gnu::noinline]] static void plant(int kind, size_t bytes) {
  for (int i = 0; i < 50; i++) guarded(bytes, i % 4 < 2, i % 2 ? &kept[kind][i] : nullptr);
  wipe();
}

int main(int, char** arguments) {
  plant(0, 3 * 4096);
  std::thread([] { plant(1, 3 * 4096); }).join();
  plant(2, 400'000);
  say("ready");
  char c;
  if (strcmp(arguments[1], "wait") == 0 && read(0, &c, 1) != 0) return 1;
  wipe();
  _exit(0);
}
