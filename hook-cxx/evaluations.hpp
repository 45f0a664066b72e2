// Finds the calls of the Python interpreter's evaluation function on the calling thread's stack, and their positions.
//
// Why: since CPython 3.11, the chain of frames passes through local variables of these calls. 3.11 and 3.12 keep the
// innermost frame in such a variable (_PyCFrame), and since 3.12 each call has an entry frame to which its first
// function returns. When code such as greenlet swaps the contents of the C stack, these pointers briefly remain and
// lead to unrelated data. So a variable is trusted only if the native stack proves it: the stack must contain the call
// of the evaluation function to which the variable belongs. The interpreter's code determines the distance of the
// variable from the end of a call's frame. This distance is the same for all calls, and is learned from a chain that
// was read through the kernel.
//
// The result is cached by the native backtrace and the stack pointer, which determine the position of all frames,
// except for functions with variable-length arrays. So if anything differs, the stack is unwound again before the
// difference is believed.
#pragma once
#include "unwind.hpp"

namespace memhook::python {

// Calls that one unwinding has found, innermost first.
struct Evaluations {
  uint64_t place;   // stack pointer | version of the module list << 48; 0: empty
  uint64_t native;  // the id of the native backtrace
  uint16_t count;
  bool is_whole;       // there are no others
  uint32_t ends[18];   // ends of their frames (CFA), in bytes from the stack pointer
  uint16_t sizes[18];  // size of the frames in bytes
};
static_assert(sizeof(Evaluations) == 128);

// Last calls found, of all threads. They are in the hook's own memory, because they decide which words of a stack are
// pointers that plain loads may follow. Only the thread that holds the GIL gets here, so there is only one at a time.
inline constexpr uint64_t evaluation_places = 512;
inline Evaluations kept_evaluations[evaluation_places];

// Returns true if the thread has the caches whose pages the attacher creates for threads that need them. If the target
// touched these pages first, they would belong to the target. An interpreter may have been loaded after the other
// caches were created.
[[gnu::always_inline]] inline bool has_large_caches(const RingHeader* ring) {
  return ring->memo_mask == gate().memo_mask && __atomic_load_n(&ring->granted_caches, __ATOMIC_ACQUIRE) >= 2;
}

// Distance from the end of a call's frame down to its variable, in bytes; 0 if unknown. Not shared with other
// processes.
struct Distances {
  uint32_t innermost, entry;
};
inline Distances distances;

// True once a thread's chain was found to belong to a stack other than the current one.
inline bool stacks_are_exchanged;

// Records the calls of the evaluation function during an unwinding.
struct EvaluationTrace {
  Evaluations* found;
  uint64_t sp, pc, start, bytes;
  uint64_t begin = 0;  // of the frame whose return address is read next
  bool is_cut = false;

  [[gnu::always_inline]] void reads(uint64_t place, uint64_t value) {
    uint64_t end = place + 8 - sp, size = end - begin;
    if (pc - start < bytes && !is_cut) {
      if (found->count == sizeof found->ends / sizeof *found->ends || end >> 32 || size >> 16) {
        is_cut = true;
      } else {
        found->sizes[found->count] = static_cast<uint16_t>(size);
        found->ends[found->count++] = static_cast<uint32_t>(end);
      }
    }
    begin = end;
    pc = value;
  }
  void restores_rbp(uint64_t, uint64_t) {}
  void uses_rbp() {}
  // Beyond a signal frame, the interpreter may have been interrupted at any instruction.
  [[gnu::always_inline]] void spoil() { is_cut = true; }
};

[[gnu::noinline]] inline void find_evaluations(RingHeader* ring, const Position& at, uint64_t start, uint64_t bytes,
                                               Evaluations* found) {
  found->place = 0;
  found->count = 0;
  asm volatile("" ::: "memory");
  EvaluationTrace trace{found, at.sp, at.pc, start, bytes};
  auto* pcs = reinterpret_cast<uint64_t*>(in_ring(ring, ring_scratch_offset));
  bool truncated = false;
  uint32_t count = unwind(ring, (module_list() >> 32) << 48, at, pcs, max_depth, &truncated, trace);
  found->is_whole = !truncated && !trace.is_cut && count < max_depth;
}

// Returns the calls on the stack of the calling thread. `again`: ignore cached calls. pre: the thread holds the GIL.
[[gnu::always_inline]] inline const Evaluations* evaluations_of(RingHeader* ring, const Position& at, uint32_t native,
                                                                uint64_t start, uint64_t bytes, bool again) {
  uint64_t place = at.sp | (module_list() >> 32) << 48;
  uint64_t hash = (place ^ uint64_t{native} << 20) * 0x9e3779b97f4a7c15;
  Evaluations* found = &kept_evaluations[(hash >> 40) & (evaluation_places - 1)];
  if (__builtin_expect(found->place == place && found->native == native && !again, 1)) return found;
  find_evaluations(ring, at, start, bytes, found);
  found->native = native;
  // The key is stored last, because a signal handler may leave this code by siglongjmp(3) at any point.
  asm volatile("" ::: "memory");
  found->place = place;
  return found;
}

// Knowledge about the memory at an address to which a chain of frames leads.
enum class Memory {
  heap,     // not on a stack that we know
  proven,   // the variable of a call that is on the stack
  unknown,  // perhaps such a variable
  stale,    // none
};

// A chain of frames with the calls that it belongs to.
struct Proof {
  const Evaluations* calls;
  uint64_t sp, low, high;
  uint32_t next = 0;

  // `distance`: the known distance of the variable; 0 if unknown. If the address has another distance, `seen` is set to
  // it, or to ~0 if `seen` already holds yet another one.
  [[gnu::always_inline]] Memory at(uint64_t address, uint32_t distance, uint32_t* seen) {
    if (__builtin_expect(address - low >= high - low, 1)) return Memory::heap;
    if (address < sp) return Memory::stale;
    uint64_t offset = address - sp;
    while (next < calls->count && calls->ends[next] <= offset) next++;
    if (next == calls->count) return calls->is_whole ? Memory::stale : Memory::unknown;
    auto there = static_cast<uint32_t>(calls->ends[next] - offset);
    if (there > calls->sizes[next]) return Memory::stale;
    if (__builtin_expect(there == distance, 1)) return Memory::proven;
    *seen = *seen == 0 || *seen == there ? there : ~0u;
    return Memory::unknown;
  }
};

}  // namespace memhook::python
