// Allocates from STACKS call stacks, at rates that differ by a factor of a thousand and more, with
// bursts and idle times. Blocks are up to 4 KiB in size. The program keeps every tenth block, or
// every Nth, or none. At the end it prints the true numbers: "done ALLOCATIONS ALLOCATED_BYTES
// LIVE_BLOCKS LIVE_BYTES". Arguments: STACKS BURST (allocations) N, and "release" to continue for
// some time and then release the kept blocks.
#include <sys/mman.h>

#include <chrono>
#include <thread>

#include "target.hpp"

using namespace target;

static unsigned long long random_state = 88172645463325252ull;
static unsigned long long allocations, allocated, live_blocks, live_bytes;

static unsigned long long kept_of = 10;
// This table is allocated outside the measured heap.
static void** kept;
static constexpr size_t most_kept = 1 << 22;

static unsigned long long draw() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state >> 11;
}

[[gnu::noinline]] static void allocate() {
  size_t size = 1 + draw() % (1 << (1 + draw() % 12));
  void* block = malloc(size);
  keep(block);
  allocations++;
  allocated += size;
  if (kept_of != 0 && allocations % kept_of == 0) {
    CHECK(live_blocks < most_kept);
    kept[live_blocks] = block;
    live_blocks++;
    live_bytes += size;
  } else {
    free(block);
  }
}

// The bits of `path` determine the call stack.
[[gnu::noinline]] static void walk(unsigned path, int depth) {
  if (depth == 0) {
    allocate();
    keep(&path);
  } else if (path & 1) {
    walk(path >> 1, depth - 1);
    keep(&path);
  } else {
    walk(path >> 1, depth - 1);
    keep(&depth);
  }
}

// No allocator has this much memory, so the call fails, which must not affect later records.
static void allocate_too_much() {
  volatile size_t size = (1ull << 63) + (1 << 20);
  void* none = malloc(size);
  keep(none);
  if (none) abort();
}

static void burst(long count, unsigned stacks) {
  allocate_too_much();
  for (long i = 0; i < count; i++) walk(static_cast<unsigned>(draw() % stacks), 12);
}

static void idle(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

int main(int argc, char** argv) {
  unsigned stacks = argc > 1 ? static_cast<unsigned>(atoi(argv[1])) : 1;
  long count = argc > 2 ? atol(argv[2]) : 100000;
  if (argc > 3) kept_of = static_cast<unsigned long long>(atol(argv[3]));
  void* room = mmap(nullptr, most_kept * sizeof(void*), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(room != MAP_FAILED);
  kept = static_cast<void**>(room);
  ready();
  for (int i = 0; i < 30; i++) {
    burst(1, stacks);
    idle(5);
  }
  burst(count, stacks);
  idle(200);
  burst(count / 4, stacks);
  for (int i = 0; i < 20; i++) {
    burst(2, stacks);
    idle(10);
  }
  burst(count, stacks);
  if (argc > 4) {
    // Sampling continues while the attacher refreshes its list of recorded blocks.
    for (int i = 0; i < 300; i++) {
      burst(count / 100, stacks);
      idle(5);
    }
    while (live_blocks > 0) free(kept[--live_blocks]);
    live_bytes = 0;
  }
  char line[128];
  snprintf(line, sizeof line, "done %llu %llu %llu %llu", allocations, allocated, live_blocks, live_bytes);
  say(line);
  wait_for_byte();
}
