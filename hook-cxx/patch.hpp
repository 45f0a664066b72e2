// Patching and restoring of GOT slots, from the journal in the region.
#pragma once
#include "ring.hpp"

namespace memhook {

inline constexpr long prot_write = 2;

// One patcher at a time: two that change the protection of one page would pull it away under each
// other. The holder never blocks on anything of the process, so the wait is short; not held after 2 s.
struct PatchLock {
  bool held = false;

  PatchLock() {
    for (int i = 0; i < 20'000 && !held; i++) {
      uint32_t expected = 0;
      held = __atomic_compare_exchange_n(&control()->patch_lock, &expected, 1u, false,
                                         __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
      if (!held) rest_ns(100'000);
    }
  }
  ~PatchLock() {
    if (held) __atomic_store_n(&control()->patch_lock, 0u, __ATOMIC_RELEASE);
  }
};

// Makes the pages of slots writable while they are written, and puts their protection back to exactly
// what it was. The journal is sorted by address, so that slots of one page cost two calls together.
class WritablePage {
 public:
  ~WritablePage() { close(); }

  // Returns slot_patched when `entry`'s slot can be written, else the state that says why not.
  uint32_t open(const SlotEntry& entry) {
    uint64_t page = entry.address & ~4095ull;
    if (page == page_) return state_;
    close();
    page_ = page;
    protection_ = entry.protection;
    uint64_t word;
    // The module may be gone since the attacher looked; the kernel answers instead of a SIGSEGV.
    if (!sys::read_own(entry.address, &word, sizeof word)) return state_ = slot_changed;
    changed_ = !(protection_ & prot_write);
    if (changed_ && protect(protection_ | prot_write) != 0) {
      changed_ = false;
      return state_ = slot_refused;
    }
    return state_ = slot_patched;
  }

 private:
  long protect(uint64_t protection) {
    return sys::call(sys::nr_mprotect, static_cast<long>(page_), 4096,
                     static_cast<long>(protection));
  }
  void close() {
    if (changed_) protect(protection_);
    changed_ = false;
  }

  uint64_t page_ = 1;  // no page
  uint64_t protection_ = 0;
  uint32_t state_ = 0;
  bool changed_ = false;
};

// Writes `to` where the slot holds `from` or `or_from`: a slot that lazy binding had not resolved when
// the attacher looked may hold the function by now. Returns the new state.
inline uint32_t exchange_slot(WritablePage& page, const SlotEntry& entry, uint64_t from,
                              uint64_t or_from, uint64_t to, uint32_t done) {
  uint32_t state = page.open(entry);
  if (state != slot_patched) return state;
  auto* slot = reinterpret_cast<uint64_t*>(entry.address);
  bool exchanged = __atomic_compare_exchange_n(slot, &from, to, false, __ATOMIC_SEQ_CST,
                                               __ATOMIC_SEQ_CST);
  if (!exchanged && from == or_from)  // the failed exchange has put the slot's value into `from`
    exchanged = __atomic_compare_exchange_n(slot, &from, to, false, __ATOMIC_SEQ_CST,
                                            __ATOMIC_SEQ_CST);
  return exchanged ? done : static_cast<uint32_t>(slot_changed);
}

// Our wrappers.
extern const uint64_t replacements[function_count][max_variants];
extern const uint64_t selective_replacements[function_count][max_variants];

// Patches every pending slot; returns how many now hold our value, or -1.
inline long patch_pending() {
  auto& wrappers = gate().flags & flag_live_filter ? selective_replacements : replacements;
  PatchLock lock;
  if (!lock.held) return -1;
  WritablePage page;
  Control* c = control();
  long patched = 0;
  uint32_t count = __atomic_load_n(&c->slot_count, __ATOMIC_ACQUIRE);
  for (uint32_t i = 0; i < count && i < max_slots; i++) {
    auto* entry = at<SlotEntry>(slots_offset) + i;
    if (__atomic_load_n(&entry->state, __ATOMIC_ACQUIRE) != slot_pending) continue;
    if (entry->function >= function_count || entry->variant >= max_variants) continue;
    originals[entry->function][entry->variant] = entry->original;
    entry->replacement = wrappers[entry->function][entry->variant];
    // Journal first: if the attacher dies now, recovery looks at this slot.
    __atomic_store_n(&entry->state, static_cast<uint32_t>(slot_patched), __ATOMIC_SEQ_CST);
    uint32_t state = exchange_slot(page, *entry, entry->expected, entry->original,
                                   entry->replacement, slot_patched);
    __atomic_store_n(&entry->state, state, __ATOMIC_RELEASE);
    patched += state == slot_patched;
  }
  return patched;
}

// Puts the original back into every slot that still holds our value; returns how many slots could
// not be restored, or -1.
inline long restore_all() {
  PatchLock lock;
  if (!lock.held) return -1;
  WritablePage page;
  Control* c = control();
  long failed = 0;
  uint32_t count = __atomic_load_n(&c->slot_count, __ATOMIC_ACQUIRE);
  for (uint32_t i = 0; i < count && i < max_slots; i++) {
    auto* entry = at<SlotEntry>(slots_offset) + i;
    if (__atomic_load_n(&entry->state, __ATOMIC_ACQUIRE) != slot_patched) continue;
    uint32_t state = exchange_slot(page, *entry, entry->replacement, entry->replacement,
                                   entry->original, slot_restored);
    __atomic_store_n(&entry->state, state, __ATOMIC_RELEASE);
    failed += state == slot_refused;
  }
  return failed;
}

}  // namespace memhook
