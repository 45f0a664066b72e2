// Remembers backtraces with the hook's code (hook-cxx), and after each call overwrites the
// remembered data with random positions, as a child with fewer privileges might (SECURITY.md). Its
// stack ends at an unreadable page, so a comparison that reads past the end of the stack crashes
// this program. At the end it prints the number of valid remembered backtraces. Argument: depth of
// the calls.
#include <sys/mman.h>
#include <ucontext.h>

#include "record.hpp"
#include "target.hpp"

using namespace memhook;
using namespace target;

constexpr long calls = 50'000;
constexpr uint64_t memo_count = 64, stack_bytes = 1 << 16, most_words = 128, events = 4096;
static RingHeader* ring;

static uint64_t next_random() {
  static uint64_t random = 88172645463325252;
  random ^= random << 13;
  random ^= random >> 7;
  random ^= random << 17;
  return random;
}

// Writes positions within the stack, past its end, and far past it.
static void spoil() {
  for (uint64_t i = 0; i < memo_count; i++) {
    auto* memo = reinterpret_cast<Memo*>(in_ring(ring, memo_offset) + i * gate().memo_bytes);
    if (memo->key == 0) continue;
    uint32_t blocks = memo->blocks < most_words / 4 ? memo->blocks : most_words / 4;
    for (uint32_t k = 0; k < blocks; k++) {
      if (next_random() % 4) continue;
      uint64_t place = next_random() % 3 ? next_random() % 600 : next_random();
      blocks_of(memo)[k].steps[next_random() % 4] = static_cast<uint16_t>(place);
    }
    if (next_random() % 16 == 0) memo->blocks = static_cast<uint8_t>(next_random() % (most_words / 4 + 1));
  }
}

// This function is compiled with frame pointers, which the unwinding here follows.
[[gnu::noinline, gnu::optimize("no-omit-frame-pointer")]] static void allocate(uint64_t number) {
  auto frame = static_cast<Frame>(__builtin_frame_address(0));
  ring->outer = 0;
  record_allocation(ring, 1, frame, reinterpret_cast<void*>(0x6000'0000'0000 + number % 64 * 64), 32);
  spoil();
}

static long depth;
[[gnu::noinline, gnu::optimize("no-omit-frame-pointer")]] static long descend(long left) {
  volatile long own = left;
  if (left > 1) return descend(left - 1) + own;
  for (uint64_t i = 0; i < calls; i++) allocate(i);
  return own;
}

static ucontext_t home, there;
static void begin() {
  // There is no caller, so the chain of frame pointers ends here.
  asm volatile("xor %ebp, %ebp");
  descend(depth);
}

static unsigned char* map(uint64_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(memory != MAP_FAILED);
  return static_cast<unsigned char*>(memory);
}

static void open_gate() {
  region = map(rings_offset + ring_prefix_bytes + events * sizeof(RawEvent));
  ring = in_report<RingHeader>(rings_offset);
  Gate& g = gate();
  g.simple = true;
  g.flags = flag_frame_pointers;
  g.depth = 64;
  g.ring_mask = g.first_ring_mask = ring->mask = events - 1;
  g.memo_words = most_words;
  g.memo_bytes = (memo_header_bytes + most_words / 4 * memo_block_bytes + 63) / 64 * 64;
  g.memo_mask = g.first_memo_mask = ring->memo_mask = memo_count - 1;
  ring->pc_mask = pc_cache_first_entries - 1;
  ring->limit = ~0ull >> 1;
  ring->drawn_head = ~0ull;
  // The page with the settings is still the program's own memory.
  auto* settings = const_cast<Control*>(control());
  settings->arena_limit = arena_bytes;
  settings->index_limit = tally()->index_mask = index_first_entries - 1;
  tally()->arena_next = 1;
}

int main(int, char** arguments) {
  depth = atol(arguments[1]);
  open_gate();
  unsigned char* stack = map(stack_bytes + 4096);
  CHECK(mprotect(stack + stack_bytes, 4096, PROT_NONE) == 0);
  auto low = reinterpret_cast<uint64_t>(stack);
  auto place = (reinterpret_cast<uint64_t>(ring) - reinterpret_cast<uint64_t>(region)) >> bounds_shift;
  auto* bounds = const_cast<StackBounds*>(in_guide<StackBounds>(bounds_offset)) + place;
  bounds->low = low;
  bounds->high = low + stack_bytes;
  CHECK(getcontext(&there) == 0);
  there.uc_stack.ss_sp = stack;
  there.uc_stack.ss_size = stack_bytes;
  there.uc_link = &home;
  makecontext(&there, begin, 0);
  CHECK(swapcontext(&home, &there) == 0 && ring->head >= calls);
  char line[64];
  snprintf(line, sizeof line, "held %lu", calls - ring->memo_misses);
  say(line);
}
