// Exchanges GOT slots while the loader cannot change its list of modules.
//
// Most slots are in pages that the loader has made read-only (RELRO): such a page is made writable, its slots are
// exchanged, and its protection is restored. If the module were unloaded in the meantime and its addresses were reused,
// the exchange would damage a page of the new owner. So all of the work is done inside a callback of
// dl_iterate_phdr(3). The lock of that function (_dl_load_write_lock) is the one that glibc takes to unmap modules
// (_dl_close_worker in elf/dl-close.c), and the callback learns whether any module was loaded or unloaded since the
// attacher compared the journal with the mappings. If so, only slots of modules that were loaded with the program are
// changed, and the attacher inspects the modules again.
//
// A module is on the loader's list before it is relocated. Until its relocation is complete, its RELRO pages are
// writable. The attacher exchanges slots in such pages only while all threads are stopped.
#pragma once
#include "ring.hpp"

namespace memhook {

inline constexpr long prot_write = 2;

// The relevant part of struct dl_phdr_info of <link.h>.
struct LoaderInfo {
  uint64_t base;
  const char* name;
  const void* headers;
  uint16_t header_count;
  uint64_t loaded;    // modules ever loaded
  uint64_t unloaded;  // modules ever unloaded
};
static_assert(__builtin_offsetof(LoaderInfo, unloaded) == 40);

// Runs `work(count)`, with the loader's counts in the form of Control::loader_count_seen, while no module can be
// unmapped or removed from the loader's list. Returns its result, or no_loader if that is not possible. pre: the caller
// is not inside the loader.
template <typename Work>
[[gnu::noinline, gnu::cold]] inline long with_loader_still(uint64_t iterate_modules, Work work) {
  struct Call {
    Work& work;
    long result;
  } call{work, no_loader};
  using Callback = int (*)(const LoaderInfo*, uint64_t, void*);
  Callback once = [](const LoaderInfo* info, uint64_t size, void* data) -> int {
    if (size < sizeof(LoaderInfo)) return 1;
    auto* c = static_cast<Call*>(data);
    c->result = c->work(info->loaded << 32 | (info->unloaded & 0xffff'ffff));
    return 1;  // the first module is enough
  };
  if (iterate_modules) reinterpret_cast<int (*)(Callback, void*)>(iterate_modules)(once, &call);
  return call.result;
}

// Reports the loader's counts to the attacher. pre: the loader's list cannot change, so no other thread reports them at
// the same time.
inline void tell_count(uint64_t count) { __atomic_store_n(&tally()->loader_count_now, count, __ATOMIC_RELEASE); }

// Returns true if the journal and the module list are still correct.
inline bool lists_are_current(uint64_t count) {
  return __atomic_load_n(&control()->loader_count_seen, __ATOMIC_ACQUIRE) == count;
}

// Makes the pages of slots writable while they are written, and restores exactly their previous protection. Slots are
// sorted by address, so that two calls are enough for all slots of a page.
class WritablePage {
 public:
  // `may_call`: true if no seccomp filter could kill the process for calling mprotect(2) or process_vm_readv(2).
  // Otherwise, pages are not made writable here, and the attacher writes the words from outside. Filters are suspended
  // while the attacher makes calls, but not after the attacher is killed.
  explicit WritablePage(bool may_call) : may_call_(may_call) {}
  ~WritablePage() { close(); }

  // Returns slot_patched if the slot can be written, otherwise a state that shows the reason.
  uint32_t open(uint64_t address, uint64_t protection) {
    uint64_t page = address & ~4095ull;
    if (page == page_) return state_;
    close();
    page_ = page;
    protection_ = protection;
    if (!may_call_) return state_ = slot_refused;
    uint64_t word;
    // If the attacher's information about the page is wrong, the kernel returns an error here, whereas a plain access
    // would raise SIGSEGV.
    if (!sys::read_own(address, &word, sizeof word)) return state_ = slot_changed;
    changed_ = !(protection_ & prot_write);
    if (changed_ && protect(protection_ | prot_write) != 0) {
      changed_ = false;
      return state_ = slot_refused;
    }
    return state_ = slot_patched;
  }

 private:
  long protect(uint64_t protection) {
    return sys::call(sys::nr_mprotect, static_cast<long>(page_), 4096, static_cast<long>(protection));
  }
  void close() {
    if (changed_) protect(protection_);
    changed_ = false;
  }

  const bool may_call_;
  uint64_t page_ = 1;  // no page
  uint64_t protection_ = 0;
  uint32_t state_ = 0;
  bool changed_ = false;
};

// Writes `to` if the word at `address` contains `from` or `or_from`: if lazy binding had not resolved a slot when the
// attacher inspected it, the slot may contain the function by now. A word that already contains `to` counts as
// exchanged. Returns the new state.
inline uint32_t exchange_word(WritablePage& page, uint64_t address, uint64_t protection, uint64_t from,
                              uint64_t or_from, uint64_t to, uint32_t done) {
  uint32_t state = page.open(address, protection);
  if (state != slot_patched) return state;
  auto* slot = reinterpret_cast<uint64_t*>(address);
  bool exchanged = __atomic_compare_exchange_n(slot, &from, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  if (!exchanged && from == to) return done;
  if (!exchanged && from == or_from)  // the failed exchange has put the slot's value into `from`
    exchanged = __atomic_compare_exchange_n(slot, &from, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return exchanged ? done : static_cast<uint32_t>(slot_changed);
}

// Our wrappers, by policy (wrappers.hpp).
using WrapperTable = uint64_t[function_count][max_variants];
template <typename Policy>
struct Replacements {
  static const WrapperTable all;
};

// Wrappers in use. Each object has its own wrappers.
const WrapperTable& wrappers_in_use();

// Patches every pending slot. Returns the number of slots that now have our value; `stale` if some slots were left out
// because modules were loaded or unloaded since the attacher inspected them; or `no_loader`. Does nothing once the gate
// is closed: a slot patched after that would not be restored. `only_forks`: patches only the slots of fork(2).
inline long patch_pending(bool only_forks = false) {
  const Control* c = control();
  return with_loader_still(trusted.iterate_modules, [=](uint64_t loader_count) -> long {
    tell_count(loader_count);
    if (epoch_now() == 0) return 0;
    bool is_current = lists_are_current(loader_count), left_out = false;
    auto& wrappers = wrappers_in_use();
    WritablePage page(may_call_kernel());
    long patched = 0;
    uint32_t count = __atomic_load_n(&c->slot_count, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < count && i < max_slots; i++) {
      auto* entry = in_guide<SlotEntry>(slots_offset) + i;
      uint32_t* state = in_report<uint32_t>(slot_states_offset) + i;
      // The attacher decides which slots are patched. The state only shows which of these slots are still pending.
      if (!__atomic_load_n(&entry->is_wanted, __ATOMIC_ACQUIRE)) continue;
      if (__atomic_load_n(state, __ATOMIC_ACQUIRE) != slot_pending) continue;
      if (entry->function >= function_count || entry->variant >= max_variants) continue;
      if (only_forks && (entry->function < first_fork || entry->function > last_fork)) continue;
      if (!is_current && !entry->is_permanent) {
        left_out = true;
        continue;
      }
      originals[entry->function][entry->variant] = entry->original;
      // Journal first: if the attacher dies now, recovery will check this slot.
      __atomic_store_n(state, static_cast<uint32_t>(slot_patched), __ATOMIC_SEQ_CST);
      uint32_t done = exchange_word(page, entry->address, entry->protection, entry->expected, entry->original,
                                    wrappers[entry->function][entry->variant], slot_patched);
      __atomic_store_n(state, done, __ATOMIC_RELEASE);
      patched += done == slot_patched;
    }
    return left_out ? stale : patched;
  });
}

// Exchanges each word that contains its expected value. Returns 0, `stale` or `no_loader`. The attacher makes the list
// from the contents of the slots, so this needs no region: a region in a fork child belongs to its parent.
inline long exchange_words(Exchange* words, uint64_t count, uint64_t iterate_modules, uint64_t loader_count_seen,
                           uint64_t* loader_count_now) {
  return with_loader_still(iterate_modules, [=](uint64_t loader_count) -> long {
    *loader_count_now = loader_count;
    if (loader_count_seen != any_loader_count && loader_count != loader_count_seen) return stale;
    WritablePage page(true);
    for (uint64_t i = 0; i < count; i++) {
      Exchange& word = words[i];
      word.state = exchange_word(page, word.address, word.protection, word.from, word.from, word.to, slot_restored);
    }
    return 0;
  });
}

}  // namespace memhook
