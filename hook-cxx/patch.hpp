// Patching and restoring of GOT slots, from the journal in the region.
#pragma once
#include "ring.hpp"

namespace memhook {

inline constexpr long prot_write = 2;

// One patcher at a time: two that change the protection of one page would pull it away under each
// other. The holder never blocks on anything of the process, so the wait is short; -1 after 2 s.
inline bool lock_patching() {
  for (int i = 0; i < 20'000; i++) {
    uint32_t expected = 0;
    if (__atomic_compare_exchange_n(&control()->patch_lock, &expected, 1u, false, __ATOMIC_ACQUIRE,
                                    __ATOMIC_RELAXED))
      return true;
    sys::sleep_ns(100'000);
  }
  return false;
}

inline void unlock_patching() {
  __atomic_store_n(&control()->patch_lock, 0u, __ATOMIC_RELEASE);
}

// Writes `to` where the slot holds `from`. The page is made writable for that moment when it is
// not (full RELRO). Returns the new state.
inline uint32_t exchange_slot(const SlotEntry& entry, uint64_t from, uint64_t to, uint32_t done) {
  uint64_t word;
  // The module may be gone since the attacher looked; the kernel answers instead of a SIGSEGV.
  if (!sys::read_own(entry.address, &word, sizeof word)) return slot_changed;
  uint64_t page = entry.address & ~4095ull;
  bool locked = !(entry.protection & prot_write);
  if (locked && sys::call(sys::nr_mprotect, static_cast<long>(page), 4096,
                          static_cast<long>(entry.protection | prot_write)) != 0)
    return slot_refused;
  auto* slot = reinterpret_cast<uint64_t*>(entry.address);
  bool exchanged = __atomic_compare_exchange_n(slot, &from, to, false, __ATOMIC_SEQ_CST,
                                               __ATOMIC_SEQ_CST);
  if (locked)
    sys::call(sys::nr_mprotect, static_cast<long>(page), 4096,
              static_cast<long>(entry.protection));
  return exchanged ? done : static_cast<uint32_t>(slot_changed);
}

// Patches every pending slot; returns how many now hold our value, or -1.
inline long patch_pending(const uint64_t (&replacements)[function_count][max_variants]) {
  if (!lock_patching()) return -1;
  Control* c = control();
  long patched = 0;
  uint32_t count = __atomic_load_n(&c->slot_count, __ATOMIC_ACQUIRE);
  for (uint32_t i = 0; i < count && i < max_slots; i++) {
    auto* entry = at<SlotEntry>(slots_offset) + i;
    if (__atomic_load_n(&entry->state, __ATOMIC_ACQUIRE) != slot_pending) continue;
    if (entry->function >= function_count || entry->variant >= max_variants) continue;
    originals[entry->function][entry->variant] = entry->original;
    entry->replacement = replacements[entry->function][entry->variant];
    // Journal first: if the attacher dies now, recovery looks at this slot.
    __atomic_store_n(&entry->state, static_cast<uint32_t>(slot_patched), __ATOMIC_SEQ_CST);
    uint32_t state = exchange_slot(*entry, entry->expected, entry->replacement, slot_patched);
    __atomic_store_n(&entry->state, state, __ATOMIC_RELEASE);
    patched += state == slot_patched;
  }
  unlock_patching();
  return patched;
}

// Puts the original back into every slot that still holds our value; returns how many slots could
// not be restored, or -1.
inline long restore_all() {
  if (!lock_patching()) return -1;
  Control* c = control();
  long failed = 0;
  uint32_t count = __atomic_load_n(&c->slot_count, __ATOMIC_ACQUIRE);
  for (uint32_t i = 0; i < count && i < max_slots; i++) {
    auto* entry = at<SlotEntry>(slots_offset) + i;
    if (__atomic_load_n(&entry->state, __ATOMIC_ACQUIRE) != slot_patched) continue;
    uint32_t state = exchange_slot(*entry, entry->replacement, entry->original, slot_restored);
    __atomic_store_n(&entry->state, state, __ATOMIC_RELEASE);
    failed += state == slot_refused;
  }
  unlock_patching();
  return failed;
}

}  // namespace memhook
