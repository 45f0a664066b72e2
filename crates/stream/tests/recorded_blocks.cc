// The live filter without a budget: threads enter and remove blocks of pages that they share. Prints nothing if each
// thread always finds its own blocks, and if no page has a mark at the end.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "emitting.hpp"

namespace memhook {
// Its bounds are used.
[[gnu::used, gnu::section("memhook_fork")]] static void no_fork() {}
}  // namespace memhook
uint32_t memhook_listeners;

using namespace memhook;

static void check(bool is_right, const char* what, uint64_t address) {
  if (is_right) return;
  printf("%s: %#lx\n", what, address);
  exit(1);
}

static uint8_t marks(uint64_t address) { return __atomic_load_n(page_marks(address), __ATOMIC_RELAXED); }

static constexpr uint64_t pages = 3, first = 0x7f12'3456'7000, threads = 4;

// Each thread has the addresses of a residue class.
static void exchange(uint64_t thread) {
  uint64_t random = 88172645463325252 + thread;
  std::vector<uint64_t> live;
  for (int i = 0; i < 400'000; i++) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    uint64_t address = first + (random % (pages * 4096 / 16 / threads) * threads + thread) * 16;
    bool is_live = false;
    for (uint64_t one : live) is_live |= one == address;
    if (!is_live && live.size() < 3) {
      enter_recorded(address);
      live.push_back(address);
    }
    for (uint64_t one : live) check(is_recorded_block(one), "not found", one);
    if (!live.empty() && random >> 60 < 8) {
      check(leave_recorded(live.back()), "not removed", live.back());
      check(!is_recorded_block(live.back()), "still found", live.back());
      live.pop_back();
    }
  }
  for (uint64_t one : live) check(leave_recorded(one), "not removed", one);
}

int main() {
  void* memory =
      mmap(nullptr, windows_offset, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return 2;
  region = static_cast<unsigned char*>(memory);
  gate().table_mask = filter_words - 1;

  std::vector<std::thread> all;
  for (uint64_t i = 0; i < threads; i++) all.emplace_back(exchange, i);
  for (std::thread& one : all) one.join();
  for (uint64_t i = 0; i < pages; i++) check(marks(first + i * 4096) == 0, "marked in the end", first + i * 4096);

  // A block whose release was not seen, and another block at the same address.
  enter_recorded(first);
  enter_recorded(first);
  check(leave_recorded(first) && marks(first) == 0, "counted twice", first);
  check(!leave_recorded(first) && marks(first) == 0, "removed twice", first);

  // More than can be counted: from then on the page is looked up each time, and never forgets a block.
  for (uint64_t i = 0; i < 20; i++) enter_recorded(first + i * 16);
  for (uint64_t i = 0; i < 19; i++) check(leave_recorded(first + i * 16), "not removed", first + i * 16);
  check(is_recorded_block(first + 19 * 16), "forgotten", first + 19 * 16);
  check(leave_recorded(first + 19 * 16) && !is_recorded_block(first), "not removed", first);

  // The table has space for two of these three blocks. The page of the third block is marked as unsure.
  constexpr uint64_t smallest = 512, apart = smallest << 8;
  gate().table_mask = smallest - 1;
  for (uint64_t i = 1; i <= 3; i++) enter_recorded(first + i * apart);
  check(marks(first + 3 * apart) == first_unsure_mark, "there is room", first + 3 * apart);
  for (uint64_t i = 1; i <= 3; i++) check(is_recorded_block(first + i * apart), "not found", first + i * apart);
  for (uint64_t i = 1; i <= 3; i++) check(leave_recorded(first + i * apart), "not removed", first + i * apart);
  check(marks(first + apart) == 0, "marked in the end", first + apart);
  return 0;
}
