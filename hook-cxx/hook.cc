// The code that runs inside the target. It imports nothing: no libc, no libstdc++, no unwinder.
//
// memhook_attach(region)   called by the attacher on a stopped thread: opens the gate, patches
// memhook_patch()          the same, for slots that became pending later
// memhook_detach()         closes the gate, restores the slots
//
// None of the three takes a lock of the process, so they can run on a thread stopped anywhere.
#include "selective.hpp"

namespace memhook {

GatePage gate_page;
uint64_t originals[function_count][max_variants];
unsigned char* region;
__thread uint64_t thread_word __attribute__((tls_model("initial-exec")));

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

// Returns how many slots were patched; -1: not our region; -2: the gate page cannot be kept from
// fork children, so tracing would not be safe; -3: patching is locked.
MEMHOOK_EXPORT long memhook_attach(unsigned char* new_region) {
  auto* c = reinterpret_cast<Control*>(new_region);
  if (c->magic != magic_value || c->abi_version != abi_version_value) return -1;
  __atomic_store_n(&gate().epoch, 0u, __ATOMIC_SEQ_CST);
  constexpr long madv_wipeonfork = 18;
  if (sys::call(sys::nr_madvise, reinterpret_cast<long>(&gate_page), sizeof gate_page,
                madv_wipeonfork) != 0)
    return -2;
  region = new_region;
  Gate& g = gate();
  g.flags = c->flags;
  g.depth = c->depth < 1 ? 1 : c->depth > max_depth ? max_depth : c->depth;
  g.clock_mode = c->clock_mode;
  constexpr uint32_t special = flag_libc_backtrace | flag_check_memo | flag_live_filter;
  g.simple = g.clock_mode == clock_coarse && !(g.flags & special);
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
  g.vdso_clock = reinterpret_cast<int (*)(int, void*)>(c->vdso_clock);
  g.libc_backtrace = reinterpret_cast<int (*)(uint64_t*, int)>(c->libc_backtrace);
  // Open before the first slot is patched: a block allocated through an early slot and released
  // through a late one must not look live. Release: the settings are visible with the epoch.
  __atomic_store_n(&g.epoch, c->epoch, __ATOMIC_RELEASE);
  long patched = patch_pending();
  return patched < 0 ? -3 : patched;
}

MEMHOOK_EXPORT long memhook_patch() { return region ? patch_pending() : -1; }

// Returns how many slots could not be restored; -1: patching is locked.
MEMHOOK_EXPORT long memhook_detach() {
  __atomic_store_n(&gate().epoch, 0u, __ATOMIC_SEQ_CST);
  return region ? restore_all() : 0;
}
