// Called by pads that do more than count: examines the values of arguments, and the call stacks of callers.
//
// This is a separate object, mapped without the target's loader. Everything is counted in the calling thread's own
// block, and nothing is sent: no ring can be full, and nothing has to be collected in time.
//
// A signal handler may interrupt this code and call a probed function itself. Such a call is counted by its pad, but
// neither its arguments nor its stack are examined, because the tables and the scratch memory are in use. A mark shows
// that. If the handler leaves by longjmp, the mark remains, and then the same applies to all further calls of that
// thread. Stack pointers prove nothing, as handlers may have stacks of their own.
#define MEMHOOK_CHECKS_OWNER
#include "backtrace.hpp"
#include "budget.hpp"

namespace memhook {

struct Counted {
  uint64_t key, count;
};

struct ValueTable {
  uint64_t highest, lowest;  // 0 at first: see rank()
  uint64_t classes[value_classes];
  Counted places[value_places];
};
static_assert(sizeof(ValueTable) <= value_table_bytes);
static_assert(__builtin_offsetof(ValueTable, classes) == 8 * value_bounds);

// Number of slots that are examined for one value or stack.
inline constexpr uint64_t value_window = 8, stack_window = 32;

// Maps signed values to the order of unsigned ones.
inline uint64_t rank(uint64_t value) { return value ^ (1ull << 63); }

inline uint64_t bits_of(uint64_t value) { return value == 0 ? 0 : 64 - __builtin_clzll(value); }

[[gnu::always_inline]] inline uint64_t class_of(uint64_t value) {
  bool negative = static_cast<int64_t>(value) < 0;
  return negative ? 63 - bits_of(~value) : 64 + bits_of(value);
}

inline uint64_t spread(uint64_t key) { return key * 0x9e37'79b9'7f4a'7c15ull; }

// The value found no slot: the least frequent value among the examined slots is replaced. Its count is missing from the
// sum of all slots, which shows that counts are too low.
[[gnu::noinline, gnu::cold]] void replace_value(ValueTable* table, uint64_t home, uint64_t value) {
  Counted* least = &table->places[home % value_places];
  for (uint64_t k = 1; k < value_window; k++) {
    Counted* other = &table->places[(home + k) % value_places];
    if (other->count < least->count) least = other;
  }
  least->count = 0;
  least->key = value;
  least->count = 1;
}

[[gnu::always_inline]] inline void count_value(ValueTable* table, uint64_t value) {
  uint64_t ranked = rank(value);
  if (__builtin_expect(ranked > table->highest, 0)) table->highest = ranked;
  if (__builtin_expect(~ranked > table->lowest, 0)) table->lowest = ~ranked;
  table->classes[class_of(value)]++;
  uint64_t home = spread(value) >> 56;
  static_assert(value_places == 256);
  for (uint64_t k = 0; k < value_window; k++) {
    Counted* place = &table->places[(home + k) % value_places];
    if (place->key == value && place->count != 0) {
      place->count++;
      return;
    }
    if (place->count == 0) {
      place->key = value;
      place->count = 1;
      return;
    }
  }
  replace_value(table, home, value);
}

// A stack that finds no slot is not counted: the sum of all slots shows how many are missing.
[[gnu::always_inline]] inline void count_stack(Counted* places, uint64_t key) {
  uint64_t home = spread(key) >> 50;
  static_assert(stack_places == 1 << 14);
  for (uint64_t k = 0; k < stack_window; k++) {
    Counted* place = &places[(home + k) % stack_places];
    if (place->key == key) {
      place->count++;
      return;
    }
    if (place->key == 0) {
      place->key = key;
      place->count = 1;
      return;
    }
  }
}

ProbeConfig config;

inline uint64_t own_tid() {
  return config.tid_offset ? *reinterpret_cast<const volatile uint32_t*>(cpu::thread_pointer() + config.tid_offset) : 1;
}

inline uint64_t number_of(uint64_t block) { return (block - config.blocks) / config.block_bytes; }

// Returns the ring of a block's owner. Forked processes count in the same blocks, so no address in them is used for
// writing.
inline RingHeader* ring_numbered(uint64_t number) {
  return in_report<RingHeader>(rings_offset + (number - 1) * (ring_prefix_bytes + trusted.ring_bytes));
}

// First call of a thread with this block, whose memory may be that of an ended thread. `tid` comes last.
[[gnu::noinline, gnu::cold]] void begin_thread(ProbeThread* thread, uint64_t block, uint64_t tid, uint64_t sp) {
  thread->ring = 0;
  uint64_t number = number_of(block);
  const Control* c = control();
  // The number of rings that the attacher has prepared. Their indices equal those of the blocks, without the shared
  // block.
  if (config.region && number >= 1 && number <= __atomic_load_n(&c->ring_limit, __ATOMIC_RELAXED) &&
      number <= max_rings) {
    RingHeader* ring = ring_numbered(number);
    use_caches(ring, ring->granted_caches != 0);
    __atomic_store_n(&ring->tid, static_cast<uint32_t>(tid), __ATOMIC_RELAXED);
    __atomic_store_n(&ring->state, static_cast<uint32_t>(ring_claimed), __ATOMIC_RELEASE);
    uint32_t used = __atomic_load_n(&tally()->rings_used, __ATOMIC_RELAXED);
    while (used < number && !__atomic_compare_exchange_n(&tally()->rings_used, &used, static_cast<uint32_t>(number),
                                                         true, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
    }
    thread->ring = 1;
  }
  thread->first_sp = sp;
  __atomic_store_n(&thread->tid, tid, __ATOMIC_RELEASE);
}

}  // namespace memhook

using namespace memhook;

#define MEMHOOK_EXPORT extern "C" [[gnu::visibility("default"), gnu::used]]

// Called by a pad. `arguments`: the registers of the first six arguments, in order. `sp`: the stack pointer at the
// entry of the function, where its return address is.
MEMHOOK_EXPORT void memhook_probe_hit(uint64_t block, uint64_t probe, const uint64_t* arguments, uint64_t sp,
                                      uint64_t rbp) {
  // The shared block has no owner.
  if (__builtin_expect(block == config.blocks, 0)) return;
  auto* thread = reinterpret_cast<ProbeThread*>(block + config.thread);
  uint64_t tid = own_tid();
  bool is_new = thread->tid != tid;
  if (__builtin_expect(thread->busy != 0, 0) && !is_new) return;
  thread->busy = 1;
  asm volatile("" ::: "memory");
  if (__builtin_expect(is_new, 0)) {
    begin_thread(thread, block, tid, sp);
    // A handler that ran meanwhile has cleared it.
    thread->busy = 1;
    asm volatile("" ::: "memory");
  }
  uint64_t count = config.argument_count;
  if (count) {
    auto* table = reinterpret_cast<unsigned char*>(block + config.values + probe * count * value_table_bytes);
    uint64_t numbers = config.arguments;
    for (uint64_t i = 0; i < count; i++, numbers >>= 8, table += value_table_bytes)
      count_value(reinterpret_cast<ValueTable*>(table), arguments[numbers & 7]);
  }
  uint64_t number = number_of(block);
  if (thread->ring != 0 && config.region && number - 1 < max_rings) {
    RingHeader* ring = ring_numbered(number);
    // Counts calls, which show the memory for backtraces how often a backtrace was not remembered.
    __atomic_store_n(&ring->head, ring->head + 1, __ATOMIC_RELAXED);
    Position start{*reinterpret_cast<const uint64_t*>(sp), sp + 8, rbp};
    uint32_t stack = stack_from(ring, 0, start);
    if (__builtin_expect(stack != 0, 1))
      count_stack(reinterpret_cast<Counted*>(block + config.stacks), (probe + 1) << 32 | stack);
  }
  asm volatile("" ::: "memory");
  thread->busy = 0;
}

// Called by the attacher on a stopped thread, which may have been anywhere.
MEMHOOK_EXPORT long memhook_probe_begin(const ProbeConfig* wanted) {
  config = *wanted;
  region = reinterpret_cast<unsigned char*>(config.region);
  if (region) {
    trusted.ring_bytes = control()->ring_bytes;
    trusted.guide_epoch = control()->epoch;
    trusted.may_call = control()->syscalls_filtered == 0;
    trusted.main_stack_low = control()->main_stack_low;
    trusted.main_stack_high = control()->main_stack_high;
  }
  Gate& g = gate();
  g.tid_offset = static_cast<uint32_t>(config.tid_offset);
  g.depth = config.depth < 1 ? 1 : config.depth > max_depth ? max_depth : static_cast<uint32_t>(config.depth);
  // As in memhook_attach(): at most two words per frame, and whole cache lines.
  g.memo_words = 2 * g.depth;
  g.memo_bytes = memo_header_bytes + (g.memo_words + 3) / 4 * memo_block_bytes;
  g.memo_bytes = (g.memo_bytes + 63) / 64 * 64;
  g.memo_mask = memos_in(ring_prefix_bytes - memo_offset) - 1;
  g.first_memo_mask = memos_in(memo_first_bytes) - 1;
  return 0;
}
