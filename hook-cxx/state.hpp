// Data that the hook stores outside the shared region.
//
// gate       one private page, wiped to zero in a fork child (MADV_WIPEONFORK): the child reads
//            epoch 0 and passes through, and so never writes into its parent's rings.
// spares     regions that a fork child may claim; private, so that the list has only regions that the child has mapped.
// originals  private, so that a fork child still finds them.
// trusted    private: everything that the hook calls, and the bounds of its writes. A forked child with fewer
//            privileges may be able to write a region (SECURITY.md), so none of this is ever taken from there once
//            it is open.
// thread     one word for each thread: ring address | epoch. Rings are page aligned, epochs are below
//            4096, so one comparison tells "my ring, of this attach" from everything else.
//            A thread without a ring: epoch << 24 | events until it asks again << 12; no mapping of
//            this size has such a low address.
//            The word is found without thread-local storage, see seats.hpp.
#pragma once
#include "abi.hpp"

namespace memhook {

using namespace abi;

// Values of Gate::noting. A thread that records a block removes it from the table of skipped blocks, if there are any
// (adapting.hpp), or, with a budget, marks its page (recorded_blocks.hpp).
inline constexpr uint8_t takes_passed_out = 1, marks_pages = 2;

struct Gate {
  uint32_t epoch;       // 0: tracing is off; with `suspended`: until the attacher is back
  uint32_t last_epoch;  // that of the last attach, which may be over
  // Owner of the region, see Control::owner; 0 in a fork child. The attacher accesses these three members by their
  // offsets (HookDescription::gate).
  uint64_t owner;
  uint32_t birth;  // in a fork child, see birth.hpp; known from outside, too
  uint32_t flags;
  uint32_t depth;
  uint32_t clock_mode;
  uint32_t tid_offset;  // Control::tid_offset
  // True if the fast half of record.hpp applies: remembered backtraces, coarse clock, no filter. That half does not
  // handle allocations with a Python function on their stack, but it does handle releases.
  bool simple;
  bool simple_releases;
  bool has_python;  // the attacher has described an interpreter: see python.hpp
  bool folds;       // see folding.hpp
  uint8_t noting;   // further duty of recording a block: one of the above, or 0
  bool is_settled;  // false in a fork child that has not yet left its inheritance: see birth.hpp
  // Together with the members above, this is everything that skipped calls read, all in one cache line. Equals
  // `tid_offset` if there may be countdowns (countdowns.hpp), otherwise 0.
  uint32_t countdown_offset;
  uint64_t table_mask;       // Control::table_mask
  uint64_t passed_below;     // smaller allocations are passed without any other question
  uint32_t recorders;        // number of recording threads: see sequence.hpp
  uint64_t first_ring_mask;  // initial events in a ring - 1
  uint64_t ring_mask;        // largest number of events - 1
  uint64_t memo_mask;        // largest number of remembered backtraces - 1
  uint64_t first_memo_mask;  // their initial number - 1
  uint64_t memo_bytes;       // bytes of a remembered backtrace
  uint32_t memo_words;       // stack words that it can have
  uint64_t sample_bytes;     // see adapting.hpp
  uint64_t min_size, max_size;
  uint32_t stale_number, true_number;  // Control::stale_number, Control::true_number
  uint32_t exact_count;
  uint64_t exact_sizes[16];
};

struct alignas(4096) GatePage {
  Gate gate;
  unsigned char rest[4096 - sizeof(Gate)];
};
static_assert(sizeof(GatePage) == 4096);
static_assert(__builtin_offsetof(Gate, owner) == 8);
static_assert(__builtin_offsetof(Gate, passed_below) + 8 <= 64);
static_assert(__builtin_offsetof(Gate, birth) == gate_birth_offset);

// The gate, followed by a page that a fork child keeps: the list of regions that it may claim, which the attacher
// writes.
struct GateArea {
  GatePage page;
  uint64_t spares[most_spares];
};
static_assert(__builtin_offsetof(GateArea, spares) == spares_behind_gate);

// Everything that the hook calls, and the bounds of its writes. A fork child has its own copy.
struct Trusted {
  uint64_t region_bytes;
  uint64_t ring_bytes;
  uint64_t iterate_modules;
  uint64_t main_stack_low, main_stack_high;
  int (*vdso_clock)(int, void*);
  uint32_t tid_offset;
  // Epoch of the last attach, here or in an ancestor.
  uint32_t epoch;
  // Control::epoch of the region: the same value, except in a child that has claimed the region.
  uint32_t guide_epoch;
  // True if the attacher is considered dead, here or in the parent.
  bool is_abandoned;
  // True if forked processes have the region.
  bool is_inherited;
  bool charges_mappings;  // Control::charges_mappings
  // True if no seccomp filter checked system calls at the attach.
  bool may_call;
};

inline Trusted trusted;
inline GateArea gate_area;
inline uint64_t originals[function_count][max_variants];
inline unsigned char* region;
// Epoch in which a thread has waited for a ring in vain.
inline uint32_t waited_in_vain;

inline Gate& gate() { return gate_area.page.gate; }
inline const Control* control() { return reinterpret_cast<const Control*>(region); }
inline Tally* tally_of(unsigned char* of_region) { return reinterpret_cast<Tally*>(of_region + tally_offset); }
inline Tally* tally() { return tally_of(region); }

// Set in the gate's epoch while the attacher is considered dead. A thread's word never has this bit, so every call of a
// suspended hook takes the path of a thread without a ring, which checks whether tracing may continue (resume() in
// ring.hpp). A traced call has no additional cost.
inline constexpr uint32_t suspended = 1u << 31;

// The epoch with its mark.
inline uint32_t gate_word() { return __atomic_load_n(&gate().epoch, __ATOMIC_ACQUIRE); }

// Returns 0 if nothing is recorded at the moment.
inline uint32_t epoch_now() {
  uint32_t word = gate_word();
  return word & suspended ? 0 : word;
}

// Returns a pointer into the data from the attacher to the hook, which is mapped read-only.
template <typename T>
inline const T* in_guide(uint64_t offset) {
  return reinterpret_cast<const T*>(region + offset);
}

// Returns a pointer into the data from the hook to the attacher. Other processes may write to it at any time
// (SECURITY.md), so every value read here is only a number: it is never used as an address to call or load, and it is
// bounded where it is used as an index. A value that is checked and then used is loaded once.
template <typename T>
inline T* in_report(uint64_t offset) {
  return reinterpret_cast<T*>(region + offset);
}

// Loads the value exactly once. Otherwise, the compiler might load it again.
template <typename T>
[[gnu::always_inline]] inline T once(const T& word) {
  return __atomic_load_n(&word, __ATOMIC_RELAXED);
}

}  // namespace memhook
