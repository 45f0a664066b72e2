// Fork children: how they leave inherited memory, and how they are traced from their first hooked call.
//
// A child inherits the region that its parent records to, and could corrupt it later, with fewer privileges than its
// parent. So the child leaves the region immediately: when fork(2) returns in the child, because fork(2) has a wrapper,
// or with the child's first hooked call if it was forked in another way. The region is replaced by the child's own
// memory, because the child may return into a wrapper that was running (if it was forked by a new-handler, or by a
// signal handler that had interrupted us).
//
// A child inherits patched slots and a closed gate. If its parent's attacher follows children, the child also inherits
// unused regions, ready to be recorded to, and the list of them. The first hooked call of the child claims a region by
// a compare-and-swap, unmaps the other regions, and opens the gate. The attacher finds the claim, and the child is a
// traced process like any other. No thread is stopped, and the parent does nothing.
//
// A child that finds no region passes all calls through. So does a child whose first hooked call was made below a
// wrapper that was running when the child was forked (by a signal handler, or a new-handler): that wrapper has the
// parent's ring and will continue with it.
#pragma once
#include "backtrace.hpp"

namespace memhook {

// Prepares the gate for the region, except for the epoch. pre: the gate is closed.
inline void prepare_gate() {
  const Control* c = control();
  Gate& g = gate();
  g.is_settled = true;
  g.owner = c->owner;
  g.flags = c->flags;
  g.depth = c->depth < 1 ? 1 : c->depth > max_depth ? max_depth : c->depth;
  g.clock_mode = c->clock_mode;
  g.tid_offset = trusted.tid_offset;
  g.stale_number = c->stale_number;
  g.true_number = c->true_number;
  constexpr uint32_t special = flag_check_memo | flag_accesses;
  bool enters_all = (g.flags & flag_live_filter) && !(g.flags & flag_budget);
  g.simple_releases = g.clock_mode == clock_coarse && !(g.flags & special) && !enters_all;
  g.has_python = in_guide<PythonLayout>(python_offset)->state != python_off;
  g.simple = g.simple_releases && !g.has_python;
  g.noting = g.flags & flag_budget ? marks_pages : 0;
  g.sample_bytes = c->sample_bytes;
  g.table_mask = c->table_mask & (filter_words - 1);
  g.folds = g.simple && (g.flags & flag_fold_pairs);
  reset_recorders();
  g.ring_mask = trusted.ring_bytes / sizeof(RawEvent) - 1;
  g.first_ring_mask = (c->first_ring_bytes / sizeof(RawEvent) - 1) & g.ring_mask;
  // At most two words per frame: the return address and a saved rbp.
  g.memo_words = 2 * g.depth;
  g.memo_bytes = memo_header_bytes + (g.memo_words + 3) / 4 * memo_block_bytes;
  g.memo_bytes = (g.memo_bytes + 63) / 64 * 64;  // whole cache lines
  g.memo_mask = memos_in(python_chains_offset - memo_offset) - 1;
  g.first_memo_mask = memos_in(memo_first_bytes) - 1;
  g.last_epoch = trusted.epoch;
  g.min_size = c->min_size;
  g.max_size = c->max_size;
  g.exact_count = c->exact_count <= 16 ? c->exact_count : 16;
  for (uint32_t i = 0; i < 16; i++) g.exact_sizes[i] = c->exact_sizes[i];
  bool has_filter = g.flags & flag_size_filter;
  g.passed_below = has_filter ? g.min_size : 0;
  // A countdown cannot tell which larger sizes the filter excludes.
  bool has_other_filter = has_filter && (g.max_size != ~0ull || g.exact_count != 0);
  bool counts_down = (g.flags & (flag_sample | flag_budget)) && !has_other_filter;
  g.countdown_offset = counts_down ? g.tid_offset : 0;
}

// Copies the data that the hook trusts.
inline void trust(const Control* c) {
  trusted.region_bytes = c->region_bytes;
  trusted.ring_bytes = c->ring_bytes;
  trusted.iterate_modules = c->iterate_modules;
  trusted.main_stack_low = c->main_stack_low;
  trusted.main_stack_high = c->main_stack_high;
  trusted.vdso_clock = reinterpret_cast<int (*)(int, void*)>(c->vdso_clock);
  trusted.tid_offset = c->tid_offset;
  trusted.guide_epoch = c->epoch;
  trusted.epoch = c->epoch & 0xfff;
  trusted.charges_mappings = c->charges_mappings != 0;
  trusted.is_inherited = false;
  trusted.is_abandoned = false;
  trusted.may_call = c->syscalls_filtered == 0;
}

// Replaces a region shared with the parent by memory of this process.
[[gnu::noinline, gnu::cold]] inline void leave_region(const unsigned char* inherited) {
  constexpr long read_write = 3, shared_anonymous_noreserve = 0x4021, fixed = 0x10, madv_dontdump = 16;
  auto start = reinterpret_cast<long>(inherited);
  auto bytes = static_cast<long>(trusted.region_bytes);
  // The memory is shared, because private memory would count towards RLIMIT_DATA. If the kernel refuses, the region
  // stays. Only system calls of allocators are used, because a filter of the child may check other calls by now.
  if (sys::call(sys::nr_mmap, start, bytes, read_write, shared_anonymous_noreserve | fixed, -1, 0) == start)
    sys::call(sys::nr_madvise, start, bytes, madv_dontdump);
}

// Leaves the parent's region in a fork child.
[[gnu::noinline, gnu::cold]] inline void leave_inheritance() {
  // This is read before the gate, because another thread may be faster and claim a region.
  unsigned char* inherited = __atomic_load_n(&region, __ATOMIC_ACQUIRE);
  if (__atomic_load_n(&gate().is_settled, __ATOMIC_ACQUIRE) || !inherited) return;
  // This does not read the region's contents, because the process may not have mapped the region.
  if (trusted.is_inherited && trusted.may_call && !trusted.charges_mappings) leave_region(inherited);
  __atomic_store_n(&gate().is_settled, true, __ATOMIC_RELEASE);
}

// Ensures that the process claims no region from now on. Returns false if a thread is claiming one at this moment and
// does not finish soon. pre: the calling thread is not inside the hook.
inline bool end_of_birth() {
  for (uint32_t i = 0; i < 1'000'000; i++) {
    uint32_t undecided = birth_undecided;
    if (__atomic_compare_exchange_n(&gate().birth, &undecided, static_cast<uint32_t>(birth_done), false,
                                    __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ||
        undecided != birth_under_way)
      return true;
    cpu::pause();
  }
  return false;
}

// Leaves the regions that are reserved for other processes, or belong to them. From now on, children of this process
// are traced only after an attach.
[[gnu::noinline, gnu::cold]] inline void leave_spares(const unsigned char* own) {
  // Another thread of this process may be about to read the list, but it takes nothing from it.
  for (uint64_t& place : gate_area.spares) {
    uint64_t spare = place;
    if (spare == 0) break;
    __atomic_store_n(&place, uint64_t{0}, __ATOMIC_RELAXED);
    if (spare != reinterpret_cast<uint64_t>(own) && trusted.may_call)
      sys::call(sys::nr_munmap, static_cast<long>(spare), static_cast<long>(trusted.region_bytes));
  }
}

// Returns an offered region, which belongs to the caller from now on; null if there is none.
inline unsigned char* take_spare() {
  for (uint64_t spare : gate_area.spares) {
    if (spare == 0) break;
    auto* taken = reinterpret_cast<unsigned char*>(spare);
    Tally* t = tally_of(taken);
    uint32_t offered = birth_offered;
    // Acquire: a process that sees the offer sees all contents of the region.
    if (__atomic_load_n(&t->birth, __ATOMIC_RELAXED) == offered &&
        __atomic_compare_exchange_n(&t->birth, &offered, static_cast<uint32_t>(birth_taken), false, __ATOMIC_ACQUIRE,
                                    __ATOMIC_RELAXED))
      return taken;
  }
  return nullptr;
}

extern "C" [[gnu::visibility("hidden")]] const char __ehdr_start[], _end[];
// Calls fork(2), and makes the child leave what it inherits. This function is in a separate section, because the
// handlers of pthread_atfork(3) run below it: it does not count as a wrapper to which a thread returns while it uses a
// ring.
[[gnu::noinline, gnu::section("memhook_fork")]] int fork_by(uint64_t original);
extern "C" [[gnu::visibility("hidden")]] const char __start_memhook_fork[], __stop_memhook_fork[];

// Returns true if one of the frames belongs to a wrapper.
[[gnu::noinline, gnu::cold]] inline bool is_below_wrapper(RingHeader* ring, Frame frame) {
  uint32_t stack = capture_native_stack(ring, 0, frame);
  if (stack == 0) return false;
  StackEntry* entry = stack_entry(stack);
  auto* frames = reinterpret_cast<const uint64_t*>(entry + 1);
  auto start = reinterpret_cast<uint64_t>(__ehdr_start), end = reinterpret_cast<uint64_t>(_end);
  auto forks = reinterpret_cast<uint64_t>(__start_memhook_fork),
       forks_end = reinterpret_cast<uint64_t>(__stop_memhook_fork);
  for (uint32_t i = 0; i < entry->depth && i < max_depth; i++)
    if (frames[i] >= start && frames[i] < end && !(frames[i] >= forks && frames[i] <= forks_end)) return true;
  return false;
}

// Returns true if the process records to its region from now on. pre: `own` was taken.
inline bool begin_life(unsigned char* own, Frame frame) {
  unsigned char* of_parent = region;
  region = own;
  Tally* t = tally();
  // Words of threads may contain the epochs of all ancestors.
  trusted.epoch = trusted.epoch % 4095 + 1;
  trusted.guide_epoch = control()->epoch;
  __atomic_store_n(&t->birth_epoch, trusted.epoch, __ATOMIC_RELAXED);
  uint32_t kept = *reinterpret_cast<uint32_t*>(cpu::thread_pointer() + trusted.tid_offset);
  uint32_t pid = may_call_kernel() ? static_cast<uint32_t>(sys::call(sys::nr_getpid)) : kept;
  __atomic_store_n(&t->birth_pid, pid, __ATOMIC_RELAXED);
  trusted.is_inherited = true;
  clear_claims();
  prepare_gate();
  gate().stale_number = 0;
  if (may_call_kernel()) {
    gate().true_number = static_cast<uint32_t>(sys::call(sys::nr_gettid));
    if (kept != gate().true_number) gate().stale_number = kept;
  }
  uint32_t epoch = gate().last_epoch;
  __atomic_store_n(&gate().epoch, epoch, __ATOMIC_RELEASE);
  RingHeader* ring = claim_ring(epoch, reinterpret_cast<uint64_t>(frame));
  if (ring && is_below_wrapper(ring, frame)) {
    __atomic_store_n(&gate().epoch, 0u, __ATOMIC_RELEASE);
    // The same state as in a process whose gate was wiped.
    gate().owner = 0;
    gate().last_epoch = 0;
    region = of_parent;
    __atomic_store_n(&t->birth, static_cast<uint32_t>(birth_closed), __ATOMIC_RELEASE);
    return false;
  }
  // Release: a reader that sees the claim also sees the process that made it.
  __atomic_store_n(&t->birth, static_cast<uint32_t>(birth_claimed), __ATOMIC_RELEASE);
  return true;
}

// Called while the gate is closed and the process has not yet left its inherited region, or not yet claimed one.
// Returns the epoch if the call is to be recorded.
[[gnu::noinline, gnu::cold]] inline uint32_t be_born(Frame frame) {
  leave_inheritance();
  // A process that was traced before, but no longer is, can be recognized by the closed gate, in which the last epoch
  // is set.
  if (gate_area.spares[0] == 0 || gate().last_epoch != 0) return epoch_now();
  uint32_t undecided = birth_undecided;
  // In the meantime, calls by other threads, and by a signal handler, pass through.
  if (!__atomic_compare_exchange_n(&gate().birth, &undecided, static_cast<uint32_t>(birth_under_way), false,
                                   __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
    return epoch_now();
  // If the parent considers its attacher dead, no attacher will find a claim of the child either.
  unsigned char* spare = trusted.is_abandoned ? nullptr : take_spare();
  bool is_born = spare && begin_life(spare, frame);
  // The child has left its parent's region, so the missed birth is also counted in the first spare region, where the
  // attacher looks.
  Tally* listed = tally_of(reinterpret_cast<unsigned char*>(gate_area.spares[0]));
  if (!is_born) __atomic_fetch_add(&listed->births_missed, 1, __ATOMIC_RELAXED);
  leave_spares(is_born ? spare : nullptr);
  __atomic_store_n(&gate().birth, static_cast<uint32_t>(is_born ? birth_done : birth_declined), __ATOMIC_RELEASE);
  return epoch_now();
}

}  // namespace memhook
