// Calls of functions that the user has described as functions of an allocator.
//
// Each described heap has its own blocks. They are recorded by keys (abi: layout/described.rs), and otherwise like
// blocks of malloc. Calls made by a described function are examined separately: malloc, from which a pool takes its
// slabs, belongs to another heap, and so do the functions of another pool. Only an allocation in the same heap is part
// of the call: pool_calloc that calls pool_alloc creates one block.
//
// While the original runs, nothing marks this thread as being inside a wrapper. So a longjmp, an exception, a switch to
// another coroutine, or the end of the thread leaves behind only the mark by which calls within the same heap are
// recognized. That mark is trusted only if the stack contains the frame.
#pragma once
#include "arch/x86_64/described_entry.hpp"
#include "calls.hpp"

namespace memhook {

// Words of the frame, by their offsets below rbp.
inline constexpr int described_original = -1, described_epoch = -11, described_number = -12, described_mark = -13,
                     described_old = -14;

// A function's description, as packed by the attacher (abi::DescribedFunction::pack).
struct Described {
  uint64_t word;

  uint64_t part(uint32_t shift, uint32_t bits) const { return word >> shift & ((1u << bits) - 1); }
  uint64_t role() const { return part(0, 4); }
  uint64_t heap() const { return part(4, 3); }
  uint64_t old() const { return part(16, 3); }
  bool old_is_indirect() const { return part(19, 1); }
  uint64_t result() const { return part(20, 3); }
  uint64_t success() const { return part(24, 2); }
};

inline Described described_at(uint64_t number) { return {in_guide<uint64_t>(described_offset)[number]}; }

// Numbers are 1 to 6.
inline uint64_t argument_of(const uint64_t* frame, uint64_t number) { return frame[-1 - static_cast<int64_t>(number)]; }

// Four bits each: the number of the argument, and a flag for an argument of which only 32 bits are significant.
inline uint64_t number_in(const uint64_t* frame, uint64_t argument) {
  uint64_t value = argument_of(frame, argument & 7);
  return argument & 8 ? static_cast<uint32_t>(value) : value;
}

inline uint64_t size_in(const uint64_t* frame, Described d) {
  uint64_t size = d.part(8, 4), count = d.part(12, 4);
  if (size == 0) return d.word >> 32;
  uint64_t bytes = number_in(frame, size);
  return count ? product(number_in(frame, count), bytes) : bytes;
}

// Returns the value that an argument points to, or 0 if there is no value. If the description is wrong, the argument
// may be any number. Everything on this thread's stack above the frame of the call is mapped. Other memory is read
// through the kernel, which returns EFAULT where a load would fault. A call whose value remains unknown counts as lost.
inline uint64_t stored_at(const RingHeader* ring, const uint64_t* frame, uint64_t place) {
  // No process maps the lowest addresses (vm.mmap_min_addr), and with four levels of page tables, there are no higher
  // addresses.
  constexpr uint64_t lowest = 65536, above = 1ull << 47;
  if (place < lowest || place >= above) return 0;
  auto here = reinterpret_cast<uint64_t>(frame);
  auto [low, high] = bounds_of(ring);
  bool is_on_stack = here >= low && here < high;
  if (is_on_stack && place >= here && place <= high - 8) return *reinterpret_cast<const uint64_t*>(place);
  uint64_t stored = 0;
  if (may_call_kernel() && sys::read_own(place, &stored, sizeof stored)) return stored;
  __atomic_fetch_add(&tally()->ringless_events, 1, __ATOMIC_RELAXED);
  return 0;
}

inline uint64_t old_in(const RingHeader* ring, const uint64_t* frame, Described d) {
  uint64_t old = argument_of(frame, d.old());
  return d.old_is_indirect() ? stored_at(ring, frame, old) : old;
}

// Returns the key of a block; 0 if the block cannot have a key. Counts such blocks.
inline uint64_t key_of(uint64_t heap, uint64_t address) {
  auto high = static_cast<uint32_t>((address >> 32) + 1);
  auto* windows = in_report<uint32_t>(windows_offset) + heap * heap_windows;
  uint64_t first = (high * 0x9e3779b9u) >> 23;
  static_assert(heap_windows == 512);
  for (uint64_t i = 0; i < heap_windows && address < key_bit; i++) {
    uint64_t window = (first + i) & (heap_windows - 1);
    uint32_t found = __atomic_load_n(&windows[window], __ATOMIC_RELAXED);
    if (found == 0 &&
        __atomic_compare_exchange_n(&windows[window], &found, high, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      found = high;
    if (found == high)
      return key_bit | heap << key_heap_shift | window << key_window_shift |
             (address & 0xffff'ffff) << key_address_shift;
  }
  __atomic_fetch_add(&tally()->ringless_events, 1, __ATOMIC_RELAXED);
  return 0;
}

// Like begin_call, but regardless of other calls that this thread is inside, because another heap does not count the
// calls of this heap. The caller must restore `outer`.
inline RingHeader* begin_in_heap(uint64_t* frame, uint64_t& outer) {
  uint32_t epoch = gate_word();
  if (epoch == 0) return nullptr;
  RingHeader* ring = ring_of(epoch, reinterpret_cast<uint64_t>(frame));
  if (!ring) return nullptr;
  end_countdown();
  outer = ring->outer;
  if (outer & 1) {
    __atomic_store_n(&ring->reentrant, ring->reentrant + 1, __ATOMIC_RELAXED);
    return nullptr;
  }
  __atomic_store_n(&ring->outer, reinterpret_cast<uint64_t>(frame), __ATOMIC_RELAXED);
  if (__builtin_expect(gate_word() != epoch, 0)) {
    __atomic_store_n(&ring->outer, outer, __ATOMIC_RELAXED);
    return nullptr;
  }
  return ring;
}

inline void end_in_heap(RingHeader* ring, uint64_t outer) {
  asm volatile("" ::: "memory");
  ring->outer = outer;
  asm volatile("" ::: "memory");
}

// Returns true if the call with the frame `mark` is running, and this call is part of it. A call by a signal handler
// that has interrupted the outer call is not part of it. pre: the ring is ours, see begin_in_heap.
[[gnu::noinline]] inline bool is_part_of(RingHeader* ring, const uint64_t* frame, uint64_t mark) {
  auto here = reinterpret_cast<uint64_t>(frame);
  if (here >= mark) return false;  // a stack grows down
  uint64_t tag = module_list() >> 32 << 48, outer = ring->outer;
  ring->outer = outer | 1;  // the scratch memory is in use
  asm volatile("" ::: "memory");
  // Most such calls are made by the function itself.
  constexpr uint32_t few = 4;
  FrameSearch search{mark + 8};
  for (uint32_t depth = few; depth <= max_depth; depth = depth < max_depth ? max_depth : depth + 1) {
    search = FrameSearch{mark + 8};
    bool truncated = false;
    unwind(ring, tag, {frame[1], here + 16, frame[0]}, scratch_of(ring), depth, &truncated, search);
    if (search.found || search.passed || truncated) break;
  }
  asm volatile("" ::: "memory");
  ring->outer = outer;
  return search.found && !search.signal;
}

// Records the release of an old block. Returns true if the release was recorded.
inline bool record_described_release(RingHeader* ring, uint64_t* frame, uint32_t f, Described d, uint64_t op,
                                     uint64_t address) {
  uint64_t key = address ? key_of(d.heap(), address) : 0;
  auto* block = reinterpret_cast<void*>(key);
  if (!key || !release_counts(block)) return false;
  record_release(ring, f, frame, op, block);
  return true;
}

}  // namespace memhook

extern "C" uint64_t memhook_described_begin(uint64_t* frame) {
  using namespace memhook;
  uint64_t stub = static_cast<uint32_t>(frame[described_original]);
  uint64_t number = stub / max_variants;
  auto f = static_cast<uint32_t>(first_described + number);
  frame[described_original] = originals[f][stub % max_variants];
  uint64_t outer;
  if (gate_word() == 0) return 0;
  RingHeader* ring = begin_in_heap(frame, outer);
  if (!ring) return 0;
  Described d = described_at(number);
  uint64_t mark = ring->described_frames[d.heap()];
  bool is_part = false;
  if (d.role() == role_releases) {
    uint64_t old = old_in(ring, frame, d);
    // The release by a reallocation has been recorded.
    bool is_said = mark && old == ring->described_olds[d.heap()] && is_part_of(ring, frame, mark);
    if (!is_said) record_described_release(ring, frame, f, d, op_release, old);
    is_part = true;
  } else if (mark) {
    is_part = is_part_of(ring, frame, mark);
  }
  if (!is_part) {
    frame[described_epoch] = thread_word() & 0xfff;
    frame[described_number] = number;
    frame[described_mark] = mark;
    frame[described_old] = 0;
    uint64_t old = d.role() == role_reallocates ? old_in(ring, frame, d) : 0;
    if (old && record_described_release(ring, frame, f, d, op_realloc_release, old)) frame[described_old] = old;
    ring->described_olds[d.heap()] = old;
    ring->described_frames[d.heap()] = reinterpret_cast<uint64_t>(frame);
  }
  end_in_heap(ring, outer);
  return !is_part;
}

extern "C" void memhook_described_end(uint64_t* frame, uint64_t result) {
  using namespace memhook;
  // If the call began in another attach, the function with this number may belong to another heap.
  if ((gate_word() & ~suspended) != frame[described_epoch]) return;
  uint64_t outer;
  RingHeader* ring = begin_in_heap(frame, outer);
  if (!ring) return;
  uint64_t number = frame[described_number];
  auto f = static_cast<uint32_t>(first_described + number);
  Described d = described_at(number);
  // If the call has continued in another thread, its ring is not the one that it had at the start. The thread that has
  // the mark will recognize it as stale.
  if (ring->described_frames[d.heap()] == reinterpret_cast<uint64_t>(frame)) {
    ring->described_frames[d.heap()] = frame[described_mark];
    ring->described_olds[d.heap()] = 0;
  }
  uint64_t block = result;
  if (d.result()) block = stored_at(ring, frame, argument_of(frame, d.result()));
  auto status = static_cast<uint32_t>(result);
  if ((d.success() == success_zero && status != 0) || (d.success() == success_not_zero && status == 0)) block = 0;
  uint64_t size = size_in(frame, d);
  if (block) {
    uint64_t key = key_of(d.heap(), block);
    bool is_wanted = !(gate().flags & selects) || selected(ring, size);
    uint32_t decided = is_wanted ? is_sample_behind(ring, frame, size) : uint32_t{is_passed};
    if (key) record_or_pass(ring, f, frame, decided, reinterpret_cast<void*>(key), size);
  } else if (frame[described_old] && size != 0) {
    // The old block remains.
    record_standing(ring, frame, key_of(d.heap(), frame[described_old]));
  }
  end_in_heap(ring, outer);
}
