// Code that runs inside the target. It imports nothing: no libc, no libstdc++, no unwinder.
//
// memhook_attach(region)   called by the attacher on a stopped thread: opens the gate, patches
// memhook_patch()          patches slots that became pending later
// memhook_exchange(...)    restores slots, given by their addresses
// memhook_close()          closes the gate; from then on all wrappers pass through
//
// memhook_close can run on a thread stopped anywhere. The other functions stop the loader's changes, so the thread must
// be stopped outside the loader.
//
// The hook is compiled into two objects. One traces. The other, with MEMHOOK_EMITTER, is loaded by memhook-rs emit, so
// that a target that is only traced has none of its code.
#ifdef MEMHOOK_EMITTER
#include "emitting.hpp"
#else
#include "described.hpp"
#include "passed_calls.hpp"
#include "selective.hpp"
#endif

namespace memhook {

int fork_by(uint64_t original) {
  int child = reinterpret_cast<int (*)()>(original)();
  if (child == 0) leave_inheritance();
  return child;
}

#define MEMHOOK_REPLACEMENTS(id, symbol, signature)                             \
  {                                                                             \
      reinterpret_cast<uint64_t>(&Wrappers<Policy>::template signature<id, 0>), \
      reinterpret_cast<uint64_t>(&Wrappers<Policy>::template signature<id, 1>), \
      reinterpret_cast<uint64_t>(&Wrappers<Policy>::template signature<id, 2>), \
      reinterpret_cast<uint64_t>(&Wrappers<Policy>::template signature<id, 3>), \
  },
static_assert(max_variants == 4);

#ifdef MEMHOOK_EMITTER

// Described allocators are only traced.
template <typename Policy>
const WrapperTable Replacements<Policy>::all = {MEMHOOK_HOOKED_FUNCTIONS(MEMHOOK_REPLACEMENTS)};

const WrapperTable& wrappers_in_use() { return Replacements<Emitting>::all; }

// Policies of the object's wrappers by purpose, and the actions at the beginning and end of an attach.
struct Object {
  using Exact = Emitting;
  using Selective = Emitting;
  using Telling = Emitting;
  static constexpr bool emits = true;
  static void begin() { __atomic_store_n(&emitted_live, 0ull, __ATOMIC_RELAXED); }
  static void end() {}
};

#else

#define MEMHOOK_STUB(n, variant) \
  reinterpret_cast<uint64_t>(&memhook_described_stubs[(4ul * (n) + (variant)) * described_stub_bytes])
#define MEMHOOK_STUBS_OF(n) {MEMHOOK_STUB(n, 0), MEMHOOK_STUB(n, 1), MEMHOOK_STUB(n, 2), MEMHOOK_STUB(n, 3)},
#define MEMHOOK_STUBS_OF_4(n) \
  MEMHOOK_STUBS_OF(n) MEMHOOK_STUBS_OF((n) + 1) MEMHOOK_STUBS_OF((n) + 2) MEMHOOK_STUBS_OF((n) + 3)
#define MEMHOOK_STUBS_OF_16(n) \
  MEMHOOK_STUBS_OF_4(n) MEMHOOK_STUBS_OF_4((n) + 4) MEMHOOK_STUBS_OF_4((n) + 8) MEMHOOK_STUBS_OF_4((n) + 12)
static_assert(max_described == 32);

template <typename Policy>
const WrapperTable Replacements<Policy>::all = {MEMHOOK_HOOKED_FUNCTIONS(MEMHOOK_REPLACEMENTS) MEMHOOK_STUBS_OF_16(0)
                                                    MEMHOOK_STUBS_OF_16(16)};

const WrapperTable& wrappers_in_use() {
  return gate().flags & flag_live_filter ? Replacements<Passing>::all : Replacements<Recording>::all;
}

struct Object {
  using Exact = Recording;
  using Selective = Passing;
  // The other object does this.
  using Telling = Passing;
  static constexpr bool emits = false;
  static void begin() {
    if (gate().flags & flag_accesses) open_access_index();
  }
  static void end() {
    if (gate().flags & flag_accesses) close_access_index();
  }
};

#endif

}  // namespace memhook

using namespace memhook;

#define MEMHOOK_EXPORT extern "C" [[gnu::visibility("default")]]

// Description of a hook that is found in a process: see abi::HookDescription.
extern "C" {
[[gnu::visibility("hidden")]] extern const HookDescription memhook_description;
[[gnu::used]] const HookDescription memhook_description = {
    {description_magic_0, description_magic_1},
    reinterpret_cast<uint64_t>(&memhook_description),
    description_version,
    function_count,
    max_variants,
    2,
    reinterpret_cast<uint64_t>(&Replacements<Object::Exact>::all),
    reinterpret_cast<uint64_t>(&Replacements<Object::Selective>::all),
    reinterpret_cast<uint64_t>(&originals),
    reinterpret_cast<uint64_t>(&gate_area.page),
    reinterpret_cast<uint64_t>(&region),
    reinterpret_cast<uint64_t>(&Replacements<Object::Telling>::all),
};
#ifdef MEMHOOK_EMITTER
// Not in the zeroed data that is in no file: see arch/x86_64/otel_memory.hpp.
[[gnu::section(".probes")]] uint32_t memhook_listeners = 0;
#endif
}

// Returns the number of patched slots, or why there are none: not_our_region, also if the process has claimed a region
// in the meantime because it was forked; no_wipe_on_fork if tracing would not be safe; stale or no_loader, with the
// gate open. `code` and `saved`: the passage for exceptions, as found by hook/passage.rs; 0 if there is none, or none
// is needed. The first passage is kept, as threads may be using it.
MEMHOOK_EXPORT long memhook_attach(unsigned char* new_region, uint64_t code, uint64_t saved) {
  auto* c = reinterpret_cast<const Control*>(new_region);
  // A child of a traced process still has its parent's memory.
  leave_inheritance();
  if (c->magic != magic_value || c->abi_version != abi_version_value) return not_our_region;
  // The other object does this.
  if (Object::emits != ((c->flags & flag_emits) != 0)) return not_our_region;
  if (!end_of_birth() || (gate().owner != 0 && gate().owner != c->owner)) return not_our_region;
  __atomic_store_n(&gate().epoch, 0u, __ATOMIC_SEQ_CST);
  constexpr long madv_wipeonfork = 18;
  if (sys::call(sys::nr_madvise, reinterpret_cast<long>(&gate_area.page), sizeof gate_area.page, madv_wipeonfork) != 0)
    return no_wipe_on_fork;
  region = new_region;
  trust(c);
  clear_claims();
  clear_seats();
  prepare_gate();
  Object::begin();
  if (code && !memhook_passage.code) {
    for (int i = 0; i < 5; i++, saved >>= 8) {
      auto words = static_cast<int64_t>(saved & 0xff);
      bool is_saved = words > 2 && 16 - 8 * words >= lowest_saved;
      memhook_passage.saved[i] = is_saved ? 16 - 8 * words : first_unsaved - int64_t{8} * i;
    }
    __atomic_store_n(&memhook_passage.code, code, __ATOMIC_RELEASE);
  }
  // The gate is open before the first slot is patched: a block allocated through an early slot and released through a
  // late slot must not look live. Release: a thread that sees the epoch also sees the settings.
  __atomic_store_n(&gate().epoch, trusted.epoch, __ATOMIC_RELEASE);
  // Until fork(2) has its wrapper, a child would keep the region. As soon as another function has a wrapper, a call may
  // be in progress when its thread forks, and a child that returned into it without memory there would crash.
  patch_pending(true);
  constexpr long madv_dofork = 11;
  trusted.is_inherited = sys::call(sys::nr_madvise, reinterpret_cast<long>(region),
                                   static_cast<long>(trusted.region_bytes), madv_dofork) == 0;
  return patch_pending();
}

// Like memhook_attach.
MEMHOOK_EXPORT long memhook_patch() { return region ? patch_pending() : not_our_region; }

// Returns 0, or the reason why nothing was exchanged. The result for each word is in the list.
MEMHOOK_EXPORT long memhook_exchange(Exchange* words, uint64_t count, uint64_t iterate_modules,
                                     uint64_t loader_count_seen, uint64_t* loader_count_now) {
  return exchange_words(words, count, iterate_modules, loader_count_seen, loader_count_now);
}

MEMHOOK_EXPORT void memhook_close() {
  __atomic_store_n(&gate().epoch, 0u, __ATOMIC_SEQ_CST);
  __atomic_store_n(&gate().countdown_offset, 0u, __ATOMIC_RELAXED);
  Object::end();
}
