// The code that runs inside the target. It imports nothing: no libc, no libstdc++, no unwinder.
//
// memhook_attach(region)   called by the attacher on a stopped thread: opens the gate, patches
// memhook_patch()          the same, for slots that became pending later
// memhook_exchange(...)    restores slots, given by their addresses
// memhook_close()          closes the gate; from then on all wrappers pass through
//
// memhook_close can run on a thread stopped anywhere. The others ask the loader to keep still, so the
// thread must be stopped outside of it.
#include "selective.hpp"

namespace memhook {

GatePage gate_page;
uint64_t originals[function_count][max_variants];
unsigned char* region;
uint32_t waited_in_vain;
AccessIndex access_index;
#ifdef MEMHOOK_WITHOUT_TLS
Claim claims[max_rings];
uint16_t seats[seat_count];
uint64_t waiting[waiting_count];
#else
__thread uint64_t tls_word __attribute__((tls_model("initial-exec")));
#endif

#define MEMHOOK_REPLACEMENTS(space, id, signature)          \
  {                                                         \
      reinterpret_cast<uint64_t>(&space::signature<id, 0>), \
      reinterpret_cast<uint64_t>(&space::signature<id, 1>), \
      reinterpret_cast<uint64_t>(&space::signature<id, 2>), \
      reinterpret_cast<uint64_t>(&space::signature<id, 3>), \
  },
#define MEMHOOK_FULL(id, symbol, signature) MEMHOOK_REPLACEMENTS(wrap, id, signature)
#define MEMHOOK_SELECTIVE_ONES(id, symbol, signature) MEMHOOK_REPLACEMENTS(selective, id, signature)
static_assert(max_variants == 4);

const uint64_t replacements[function_count][max_variants] = {MEMHOOK_HOOKED_FUNCTIONS(MEMHOOK_FULL)};
const uint64_t selective_replacements[function_count][max_variants] = {
    MEMHOOK_HOOKED_FUNCTIONS(MEMHOOK_SELECTIVE_ONES)};

}  // namespace memhook

using namespace memhook;

#define MEMHOOK_EXPORT extern "C" [[gnu::visibility("default")]]

// What a found hook says of itself: see abi::HookDescription.
extern "C" {
[[gnu::visibility("hidden")]] extern const HookDescription memhook_description;
[[gnu::used]] const HookDescription memhook_description = {
    {description_magic_0, description_magic_1},
    reinterpret_cast<uint64_t>(&memhook_description),
    description_version,
    function_count,
    max_variants,
    2,
    reinterpret_cast<uint64_t>(&replacements),
    reinterpret_cast<uint64_t>(&selective_replacements),
    reinterpret_cast<uint64_t>(&originals),
    reinterpret_cast<uint64_t>(&gate_page),
    reinterpret_cast<uint64_t>(&region),
};
}

// Returns how many slots were patched, or why none: not_our_region; no_wipe_on_fork, where tracing
// would not be safe; stale or no_loader, with the gate open.
MEMHOOK_EXPORT long memhook_attach(unsigned char* new_region) {
  auto* c = reinterpret_cast<Control*>(new_region);
  if (c->magic != magic_value || c->abi_version != abi_version_value) return not_our_region;
  __atomic_store_n(&gate().epoch, 0u, __ATOMIC_SEQ_CST);
  constexpr long madv_wipeonfork = 18;
  if (sys::call(sys::nr_madvise, reinterpret_cast<long>(&gate_page), sizeof gate_page,
                madv_wipeonfork) != 0)
    return no_wipe_on_fork;
  region = new_region;
  Gate& g = gate();
  g.owner = c->owner;
  g.flags = c->flags;
  g.depth = c->depth < 1 ? 1 : c->depth > max_depth ? max_depth : c->depth;
  g.clock_mode = c->clock_mode;
  constexpr uint32_t special =
      flag_libc_backtrace | flag_check_memo | flag_live_filter | flag_accesses;
  g.simple_releases = g.clock_mode == clock_coarse && !(g.flags & special);
  g.has_python = at<PythonLayout>(python_offset)->state != python_off;
  g.simple = g.simple_releases && !g.has_python;
  g.has_passed = false;
  g.sample_bytes = c->sample_bytes;
  g.passed_mask = c->passed_mask & (passed_blocks - 1);
  g.folds = g.simple && (g.flags & flag_fold_pairs);
  reset_recorders();
  g.first_ring_mask = c->first_ring_bytes / sizeof(RawEvent) - 1;
  // At most two words a frame: the return address and a saved rbp.
  g.memo_words = 2 * g.depth;
  g.memo_bytes = memo_header_bytes + (g.memo_words + 3) / 4 * memo_block_bytes;
  g.memo_bytes = (g.memo_bytes + 63) / 64 * 64;  // whole cache lines
  g.memo_mask = memos_in(ring_prefix_bytes - memo_offset) - 1;
  g.first_memo_mask = memos_in(memo_first_bytes) - 1;
  g.last_epoch = c->epoch;
  g.filter_shift = c->filter_shift;
  g.min_size = c->min_size;
  g.max_size = c->max_size;
  g.exact_count = c->exact_count <= 16 ? c->exact_count : 16;
  for (uint32_t i = 0; i < 16; i++) g.exact_sizes[i] = c->exact_sizes[i];
  if (g.flags & flag_accesses) open_access_index();
  g.vdso_clock = reinterpret_cast<int (*)(int, void*)>(c->vdso_clock);
  g.libc_backtrace = reinterpret_cast<int (*)(uint64_t*, int)>(c->libc_backtrace);
  // Open before the first slot is patched: a block allocated through an early slot and released
  // through a late one must not look live. Release: the settings are visible with the epoch.
  __atomic_store_n(&g.epoch, c->epoch, __ATOMIC_RELEASE);
  return patch_pending();
}

// As memhook_attach.
MEMHOOK_EXPORT long memhook_patch() { return region ? patch_pending() : not_our_region; }

// Returns 0, or why nothing was exchanged; what became of each word is in the list.
MEMHOOK_EXPORT long memhook_exchange(Exchange* words, uint64_t count, uint64_t iterate_modules,
                                     uint64_t loader_count_seen, uint64_t* loader_count_now) {
  return exchange_words(words, count, iterate_modules, loader_count_seen, loader_count_now);
}

MEMHOOK_EXPORT void memhook_close() {
  __atomic_store_n(&gate().epoch, 0u, __ATOMIC_SEQ_CST);
  if (gate().flags & flag_accesses) close_access_index();
}
