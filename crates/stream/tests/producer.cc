// Writes known events through the hook's own ring code into the region of descriptor argv[1]: argv[2] waves of argv[3]
// threads, argv[4] events each. The reader knows event i of thread t (see `expected` in cxx_producer.rs). With a fifth
// argument "fold", the threads allocate and release, and fold what can be folded. With "adapt", they take samples while
// a ring is nearly full, or as ordered. "waits" checks how long a thread waits before it takes samples.
#include "budget.hpp"
#include "folding.hpp"

#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace memhook;

static constexpr uint64_t shared_page = 0x7000'0000'0000;

static void produce(uint64_t t, uint64_t events) {
  for (uint64_t i = 0; i < events; i++) {
    uint32_t epoch = epoch_now();
    RingHeader* ring = ring_of(epoch, reinterpret_cast<uint64_t>(&epoch));
    if (!ring || !reserve(ring)) abort();
    // Every thread releases a block of the same page, like record_release.
    ring->outer = 1;
    asm volatile("" ::: "memory");
    next_release(shared_page);
    asm volatile("" ::: "memory");
    ring->outer = 0;
    uint64_t size = i % 1000 == 999 ? (1ull << 32) + i : ((i * 0x9e3779b1 + t) & 0x7fffffff);
    commit(ring, op_allocation, ((t << 32 | i) + 1) << 3,
           static_cast<uint32_t>((i * 5 + t) & 0x3fffff), size,
           static_cast<uint32_t>((i * 3 + t) & 0x3ffffff));
  }
}

// Like record_release: folds if it can.
static void release(RingHeader* ring, uint64_t address) {
  ring->outer = 1;
  asm volatile("" ::: "memory");
  if (!is_of_last_event(ring, address) || !fold(ring, address)) {
    if (!reserve(ring)) abort();
    commit(ring, op_release, address, next_release(address), 0, 0);
  }
  asm volatile("" ::: "memory");
  ring->outer = 0;
}

// Half of the blocks are released immediately, some of them several times in a row, and the others after 16 more
// allocations. Address and size identify the block.
static void allocate_and_release(uint64_t t, uint64_t events) {
  constexpr uint64_t held = 16;
  uint64_t kept[held] = {}, random = t + 1;
  uint32_t epoch = epoch_now();
  RingHeader* ring = ring_of(epoch, reinterpret_cast<uint64_t>(&epoch));
  if (!ring) abort();
  for (uint64_t i = 0; i < events; i++) {
    random = random * 6364136223846793005 + 1442695040888963407;
    uint64_t place = random >> 60, repeats = 1 + (random >> 50 & 7);
    uint64_t address = (t + 1) << 32 | (i + 1) << 4;
    bool keep = random >> 40 & 1;
    for (uint64_t k = 0; k < (keep ? 1 : repeats); k++) {
      if (!reserve(ring)) abort();
      uint32_t sequence = __atomic_load_n(sequence_word(address), __ATOMIC_ACQUIRE);
      commit(ring, op_allocation, address, sequence, i & 0xffff, 7);
      // Sometimes so late that the allocation has been claimed, or taken.
      if ((random >> 30 & 255) == 0) usleep(random >> 20 & 255);
      if (!keep) release(ring, address);
    }
    if (!keep) continue;
    if (kept[place]) release(ring, kept[place]);
    kept[place] = address;
  }
  for (uint64_t address : kept)
    if (address) release(ring, address);
}

// Returns true if the wrappers would record an allocation; like is_sample() of record.hpp.
static bool is_sample(RingHeader* ring, uint64_t size) {
  if (ring->sampling == records_all) return true;
  ring->sample_left -= size;
  if (static_cast<int64_t>(ring->sample_left) >= 0) return false;
  return gate().flags & flag_budget ? decide_by_order(ring, size) != is_passed : decide_sample(ring, size);
}

// Replaces random ones of 64 blocks, and finally releases all of them. A released address is the next to be reused. An
// allocation's stack shows if the thread takes samples.
static void adapt(uint64_t t, uint64_t events) {
  constexpr uint64_t held = 64;
  uint64_t kept[held] = {}, random = t + 1, unused = (t + 1) << 32;
  uint32_t epoch = epoch_now();
  RingHeader* ring = ring_of(epoch, reinterpret_cast<uint64_t>(&epoch));
  if (!ring) abort();
  auto release_block = [ring](uint64_t address) {
    auto* block = reinterpret_cast<void*>(address);
    // Like release_counts() of calls.hpp.
    if (gate().flags & flag_live_filter ? !leave_recorded(address) : was_passed(block)) return;
    if (!reserve(ring)) abort();
    commit(ring, op_release, address, next_release(address), 0, 0);
  };
  for (uint64_t i = 0; i < events; i++) {
    random = random * 6364136223846793005 + 1442695040888963407;
    uint64_t& place = kept[random >> 58];
    if (place) release_block(place);
    uint64_t size = 1 + (random >> 20) % 516, address = place ? place : unused += 64;
    auto* block = reinterpret_cast<void*>(address);
    place = address;
    ring->waited_ns = most_waited_ns;  // so that every full ring has it change over
    if (is_sample(ring, size)) {
      bool exact = ring->sampling != records_samples && ring->sampling != wants_all &&
                   ring->sampling != wants_other_order;
      if (!reserve(ring)) abort();
      // The change that reserve() may have requested comes with the next allocation.
      ring->outer = 1;
      asm volatile("" ::: "memory");
      // Like record_allocation() and record_allocation_slowly().
      if ((gate().flags & flag_budget) && ring->sampling != records_all)
        enter_recorded(address);
      else
        note_recorded(block);
      commit(ring, op_allocation, address, 0, size, exact ? 1 : 2);
      asm volatile("" ::: "memory");
      ring->outer = 0;
    } else {
      note_passed(block);
    }
  }
  for (uint64_t address : kept)
    if (address) release_block(address);
}

// Checks which waits count as too long, with a clock of our own.
static bool counts_waits() {
  uint32_t epoch = epoch_now();
  RingHeader* ring = ring_of(epoch, reinterpret_cast<uint64_t>(&epoch));
  if (!ring) abort();
  uint64_t now = 1'000'000'000;
  auto enough = [&](uint64_t later_ns, uint64_t waited_ns) {
    now += later_ns;
    __atomic_store_n(&tally()->clock_ns, now, __ATOMIC_RELAXED);
    ring->waited_ns = spent_waiting(ring, now, waited_ns);
    ring->waited_at_ns = now;
    return ring->waited_ns >= static_cast<uint64_t>(wait_allowance_ns);
  };
  constexpr uint64_t ms = 1'000'000;
  // A single wait of this length.
  bool right = !enough(0, wait_allowance_ns - ms) && enough(0, ms);
  // Then a share of the time.
  for (int i = 0; i < 100; i++)
    right = right && !enough(wait_share * ms, ms / 2) && enough(wait_share * ms / 2, ms);
  // A wait of any length is forgotten after a while, and not before that.
  right = right && enough(0, 10'000 * ms) && enough(wait_share * (most_waited_ns - wait_allowance_ns), 0);
  right = right && !enough(wait_share, 0);
  // The thread waits when a quarter of its ring is left, but only for a short time, and then takes samples.
  enough(10'000 * ms, 0);
  uint64_t nearly_full = (mask_of(ring) + 1) / 4 * 3, tail = ring->tail;
  right = right && ring->sampling == records_all;
  right = right && look_for_room(ring) && may_go_on(ring, 0) && ring->limit == tail + nearly_full;
  uint64_t head = ring->head;
  ring->head = tail + nearly_full - reserve_events + 1;
  right = right && look_for_room(ring) && !may_go_on(ring, 0) && !may_go_on(ring, longest_wait_ns - 1);
  right = right && ring->sampling == records_all && may_go_on(ring, longest_wait_ns);
  right = right && ring->sampling == wants_samples;
  ring->head = head;
  return right;
}

int main(int arguments, char** argv) {
  int fd = atoi(argv[1]);
  uint64_t waves = strtoull(argv[2], nullptr, 10), threads = strtoull(argv[3], nullptr, 10);
  uint64_t events = strtoull(argv[4], nullptr, 10);
  struct stat stat;
  if (fstat(fd, &stat) != 0) return 1;
  void* map = mmap(nullptr, static_cast<size_t>(stat.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) return 2;
  region = static_cast<unsigned char*>(map);
  Gate& g = gate();  // as memhook_attach does
  g.tid_offset = control()->tid_offset;
  g.last_epoch = control()->epoch;
  g.flags = control()->flags;
  g.clock_mode = control()->clock_mode;
  g.sample_bytes = control()->sample_bytes;
  g.table_mask = control()->table_mask;
  g.noting = g.flags & flag_budget ? marks_pages : 0;
  trusted.ring_bytes = control()->ring_bytes;
  trusted.guide_epoch = control()->epoch;
  trusted.may_call = control()->syscalls_filtered == 0;
  g.ring_mask = trusted.ring_bytes / sizeof(RawEvent) - 1;
  g.first_ring_mask = control()->first_ring_bytes / sizeof(RawEvent) - 1;
  reset_recorders();
  constexpr int register_global_expedited = 1 << 2;
  if (syscall(SYS_membarrier, register_global_expedited, 0, 0) != 0) return 4;
  __atomic_store_n(&g.epoch, control()->epoch, __ATOMIC_RELEASE);
  if (arguments > 5 && strcmp(argv[5], "waits") == 0) return counts_waits() ? 0 : 6;
  auto work = arguments == 5 ? produce : strcmp(argv[5], "adapt") == 0 ? adapt : allocate_and_release;
  for (uint64_t wave = 0; wave < waves; wave++) {
    std::vector<std::thread> running;
    for (uint64_t i = 0; i < threads; i++)
      running.emplace_back(work, wave * threads + i, events);
    for (auto& thread : running) thread.join();
  }
  if (arguments == 5 && *sequence_word(shared_page) != waves * threads * events) return 5;
  return tally()->abandoned ? 3 : 0;
}
