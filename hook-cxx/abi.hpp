// Generated from crates/abi. Edit that, not this.
#pragma once
#include <stdint.h>

namespace memhook::abi {

inline constexpr uint64_t guide_bytes = 0x7282000;
inline constexpr uint64_t tally_offset = 0x7282000;
inline constexpr uint64_t slot_states_offset = 0x7283000;
inline constexpr uint64_t bounds_offset = 0x202000;
inline constexpr uint64_t bounds_shift = 0x12;
inline constexpr uint64_t magic_value = 0x314b4f4f484d454d;
inline constexpr uint64_t abi_version_value = 0x1d;
inline constexpr uint64_t max_slots = 0x8000;
inline constexpr uint64_t max_modules = 0x800;
inline constexpr uint64_t max_variants = 0x4;
inline constexpr uint64_t sequence_words = 0x4000;
inline constexpr uint64_t index_entries = 0x100000;
inline constexpr uint64_t index_first_entries = 0x1000;
inline constexpr uint64_t arena_bytes = 0x10000000;
inline constexpr uint64_t granule_bytes = 0x10;
inline constexpr uint64_t max_depth = 0x80;
inline constexpr uint64_t max_rings = 0x400;
inline constexpr uint64_t ring_prefix_bytes = 0x50000;
inline constexpr uint64_t ring_scratch_offset = 0x400;
inline constexpr uint64_t pc_cache_offset = 0x2800;
inline constexpr uint64_t pc_cache_entries = 0x800;
inline constexpr uint64_t pc_cache_first_entries = 0x80;
inline constexpr uint64_t memo_first_bytes = 0x2000;
inline constexpr uint64_t index_growth = 0x4;
inline constexpr uint64_t memo_offset = 0xf000;
inline constexpr uint64_t memo_guides_offset = 0x2000;
inline constexpr uint64_t memo_guides = 0x100;
inline constexpr uint64_t memo_guide_bytes = 0x8;
inline constexpr uint64_t memo_header_bytes = 0x20;
inline constexpr uint64_t memo_block_bytes = 0x28;
inline constexpr uint64_t max_rows = 0x1000000;
inline constexpr uint64_t max_rules = 0x10000;
inline constexpr uint64_t rules_offset = 0x1202000;
inline constexpr uint64_t row_offsets_offset = 0x1282000;
inline constexpr uint64_t row_rules_offset = 0x5282000;
inline constexpr uint64_t filter_offset = 0x17ab3000;
inline constexpr uint64_t filter_pages = 0x100000;
inline constexpr uint64_t filter_table_offset = 0x17bb3000;
inline constexpr uint64_t first_entered_mark = 0x1;
inline constexpr uint64_t entered_marks = 0x3;
inline constexpr uint64_t first_unsure_mark = 0x4;
inline constexpr uint64_t unsure_marks = 0xc;
inline constexpr uint64_t filter_words = 0x100000;
inline constexpr uint64_t filter_hash = 0x9e3779b97f4a7c15;
inline constexpr uint64_t sample_offset = 0x1f2000;
inline constexpr uint64_t sample_quantiles = 0x1000;
inline constexpr uint64_t mark_count = 0x18;
inline constexpr uint64_t mark_by_program = 0x8000000000000000;
inline constexpr uint64_t slots_offset = 0x2000;
inline constexpr uint64_t modules_offset = 0x1c2000;
inline constexpr uint64_t sequence_offset = 0x72a3000;
inline constexpr uint64_t index_offset = 0x72b3000;
inline constexpr uint64_t arena_offset = 0x7ab3000;
inline constexpr uint64_t access_offset = 0x183b7000;
inline constexpr uint64_t access_records = 0x100000;
inline constexpr uint64_t rings_offset = 0x203b7000;
inline constexpr uint64_t function_count = 0x87;
inline constexpr uint64_t first_described = 0x67;
inline constexpr uint64_t max_described = 0x20;
inline constexpr uint64_t max_heaps = 0x8;
inline constexpr uint64_t heap_windows = 0x200;
inline constexpr uint64_t described_offset = 0x1fd000;
inline constexpr uint64_t windows_offset = 0x183b3000;
inline constexpr uint64_t key_bit = 0x800000000000;
inline constexpr uint64_t key_heap_shift = 0x2c;
inline constexpr uint64_t key_window_shift = 0x23;
inline constexpr uint64_t key_address_shift = 0x3;
inline constexpr uint64_t role_allocates = 0x1;
inline constexpr uint64_t role_releases = 0x2;
inline constexpr uint64_t role_reallocates = 0x3;
inline constexpr uint64_t success_zero = 0x1;
inline constexpr uint64_t success_not_zero = 0x2;
inline constexpr uint64_t first_operator = 0xb;
inline constexpr uint64_t last_operator = 0x12;
inline constexpr uint64_t first_shape = 0x59;
inline constexpr uint64_t last_shape = 0x66;
inline constexpr uint64_t op_allocation = 0x1;
inline constexpr uint64_t op_release = 0x2;
inline constexpr uint64_t op_realloc_release = 0x3;
inline constexpr uint64_t op_realloc_failed = 0x4;
inline constexpr uint64_t op_tick = 0x5;
inline constexpr uint64_t op_size_extension = 0x6;
inline constexpr uint64_t op_pair = 0x7;
inline constexpr uint64_t op_sampling_change = 0xd;
inline constexpr uint64_t op_access = 0x85;
inline constexpr uint64_t op_call_time = 0x1d;
inline constexpr uint64_t op_mapped = 0x15;
inline constexpr uint64_t op_unmapped = 0x25;
inline constexpr uint64_t op_discarded = 0x45;
inline constexpr uint64_t slot_pending = 0x1;
inline constexpr uint64_t slot_patched = 0x2;
inline constexpr uint64_t slot_changed = 0x3;
inline constexpr uint64_t slot_restored = 0x4;
inline constexpr uint64_t slot_refused = 0x5;
inline constexpr uint64_t clock_coarse = 0x0;
inline constexpr uint64_t clock_tsc = 0x1;
inline constexpr uint64_t clock_monotonic = 0x2;
inline constexpr uint64_t clock_attacher = 0x3;
inline constexpr uint64_t flag_release_stacks = 0x1;
inline constexpr uint64_t flag_drop_when_full = 0x2;
inline constexpr uint64_t flag_adapt_when_full = 0x400;
inline constexpr uint64_t flag_budget = 0x800;
inline constexpr uint64_t passed_blocks = 0x100000;
inline constexpr uint64_t passed_blocks_offset = 0x17bb3000;
inline constexpr uint64_t flag_size_filter = 0x4;
inline constexpr uint64_t flag_frame_pointers = 0x8;
inline constexpr uint64_t flag_live_filter = 0x20;
inline constexpr uint64_t flag_sample = 0x40;
inline constexpr uint64_t flag_check_memo = 0x10;
inline constexpr uint64_t flag_lone_recorder = 0x100;
inline constexpr uint64_t flag_accesses = 0x1000;
inline constexpr uint64_t flag_looks = 0x2000;
inline constexpr uint64_t flag_call_times = 0x8000;
inline constexpr uint64_t flag_emits = 0x4000;
inline constexpr uint64_t flag_fold_pairs = 0x200;
inline constexpr uint64_t cfa_stop = 0x0;
inline constexpr uint64_t cfa_rsp = 0x1;
inline constexpr uint64_t cfa_rbp = 0x2;
inline constexpr uint64_t cfa_at_rbp = 0x3;
inline constexpr uint64_t cfa_plt = 0x4;
inline constexpr uint64_t cfa_signal = 0x5;
inline constexpr uint64_t cfa_end = 0x6;
inline constexpr uint64_t cfa_made = 0x7;
inline constexpr uint64_t rule_made = 0x10fff00107;
inline constexpr uint64_t rbp_same = 0x0;
inline constexpr uint64_t rbp_at_cfa = 0x1;
inline constexpr uint64_t rbp_at_rbp = 0x2;
inline constexpr uint64_t description_magic_0 = 0x3d1e57a9b60c42f8;
inline constexpr uint64_t description_magic_1 = 0x9bc4706f18e3ad25;
inline constexpr uint64_t description_version = 0x2;
inline constexpr uint64_t any_loader_count = 0xffffffffffffffff;
inline constexpr uint64_t probe_arguments = 0x6;
inline constexpr uint64_t value_classes = 0x80;
inline constexpr uint64_t value_bounds = 0x2;
inline constexpr uint64_t value_places = 0x100;
inline constexpr uint64_t value_table_bytes = 0x1440;
inline constexpr uint64_t stack_places = 0x4000;
inline constexpr uint64_t marks_offset = 0x7282400;
inline constexpr uint64_t python_offset = 0x1000;
inline constexpr uint64_t python_off = 0x0;
inline constexpr uint64_t python_direct = 0x2;
inline constexpr uint64_t python_increments = 0x0;
inline constexpr uint64_t python_ranges = 0x1;
inline constexpr uint64_t python_byte = 0x0;
inline constexpr uint64_t python_unit = 0x1;
inline constexpr uint64_t python_every = 0x0;
inline constexpr uint64_t python_marked = 0x1;
inline constexpr uint64_t no_offset = 0xffffffff;
inline constexpr uint64_t python_frame_bytes = 0x80;
inline constexpr uint64_t python_code_bytes = 0x100;
inline constexpr uint64_t python_keys = 0x20;
inline constexpr uint64_t python_frame = 0x8000000000000000;
inline constexpr uint64_t python_last = 0x100000000;
inline constexpr uint64_t python_native = 0xc000000000000000;
inline constexpr uint64_t python_location = 0xff;
inline constexpr uint64_t python_name_bytes = 0xf0;
inline constexpr uint64_t python_file_bytes = 0x2bc;
inline constexpr uint64_t python_cache_offset = 0xb000;
inline constexpr uint64_t python_cache_entries = 0x100;
inline constexpr uint64_t python_chains_offset = 0x40000;
inline constexpr uint64_t python_chains = 0x40;
inline constexpr uint64_t python_chain_bytes = 0x400;
inline constexpr uint64_t ring_free = 0x0;
inline constexpr uint64_t ring_claimed = 0x1;
inline constexpr uint64_t birth_offered = 0x1;
inline constexpr uint64_t birth_taken = 0x2;
inline constexpr uint64_t birth_claimed = 0x3;
inline constexpr uint64_t birth_closed = 0x4;
inline constexpr uint64_t gate_birth_offset = 0x10;
inline constexpr uint64_t look_open = 0x1;
inline constexpr uint64_t look_named = 0x2;
inline constexpr uint64_t look_asked = 0x3;
inline constexpr uint64_t look_closed = 0x0;
inline constexpr uint64_t birth_undecided = 0x0;
inline constexpr uint64_t birth_under_way = 0x1;
inline constexpr uint64_t birth_done = 0x2;
inline constexpr uint64_t birth_declined = 0x3;
inline constexpr uint64_t spares_behind_gate = 0x1000;
inline constexpr uint64_t most_spares = 0x40;
inline constexpr uint64_t first_fork = 0x54;
inline constexpr uint64_t last_fork = 0x56;
inline constexpr long not_our_region = -1;
inline constexpr long no_wipe_on_fork = -2;
inline constexpr long stale = -3;
inline constexpr long no_loader = -4;

struct Control {
  uint64_t magic;
  uint32_t abi_version;
  uint32_t epoch;
  uint64_t region_bytes;
  uint64_t ring_bytes;
  uint32_t depth;
  uint32_t clock_mode;
  uint32_t flags;
  uint32_t tid_offset;
  uint32_t stale_number;
  uint32_t true_number;
  uint32_t attacher_pid;
  uint32_t exact_count;
  uint64_t min_size;
  uint64_t max_size;
  uint64_t exact_sizes[16];
  uint64_t vdso_clock;
  uint64_t iterate_modules;
  uint64_t main_stack_low;
  uint64_t main_stack_high;
  uint64_t owner;
  uint64_t charges_mappings;
  uint64_t sample_bytes;
  uint64_t table_mask;
  uint64_t first_ring_bytes;
  uint64_t arena_limit;
  uint64_t index_limit;
  uint64_t access_index_limit;
  uint64_t module_list;
  uint64_t later[16];
  uint32_t slot_count;
  uint32_t forwarding_operators;
  uint32_t syscalls_filtered;
  uint32_t module_answers;
  uint32_t recorders_granted;
  uint32_t ring_limit;
  uint64_t loader_count_seen;
  uint64_t access_limit;
  uint64_t ring_sweeps;
  uint64_t look_distance;
};
static_assert(sizeof(Control) == 496);
static_assert(__builtin_offsetof(Control, magic) == 0);
static_assert(__builtin_offsetof(Control, abi_version) == 8);
static_assert(__builtin_offsetof(Control, epoch) == 12);
static_assert(__builtin_offsetof(Control, region_bytes) == 16);
static_assert(__builtin_offsetof(Control, ring_bytes) == 24);
static_assert(__builtin_offsetof(Control, depth) == 32);
static_assert(__builtin_offsetof(Control, clock_mode) == 36);
static_assert(__builtin_offsetof(Control, flags) == 40);
static_assert(__builtin_offsetof(Control, tid_offset) == 44);
static_assert(__builtin_offsetof(Control, stale_number) == 48);
static_assert(__builtin_offsetof(Control, true_number) == 52);
static_assert(__builtin_offsetof(Control, attacher_pid) == 56);
static_assert(__builtin_offsetof(Control, exact_count) == 60);
static_assert(__builtin_offsetof(Control, min_size) == 64);
static_assert(__builtin_offsetof(Control, max_size) == 72);
static_assert(__builtin_offsetof(Control, exact_sizes) == 80);
static_assert(__builtin_offsetof(Control, vdso_clock) == 208);
static_assert(__builtin_offsetof(Control, iterate_modules) == 216);
static_assert(__builtin_offsetof(Control, main_stack_low) == 224);
static_assert(__builtin_offsetof(Control, main_stack_high) == 232);
static_assert(__builtin_offsetof(Control, owner) == 240);
static_assert(__builtin_offsetof(Control, charges_mappings) == 248);
static_assert(__builtin_offsetof(Control, sample_bytes) == 256);
static_assert(__builtin_offsetof(Control, table_mask) == 264);
static_assert(__builtin_offsetof(Control, first_ring_bytes) == 272);
static_assert(__builtin_offsetof(Control, arena_limit) == 280);
static_assert(__builtin_offsetof(Control, index_limit) == 288);
static_assert(__builtin_offsetof(Control, access_index_limit) == 296);
static_assert(__builtin_offsetof(Control, module_list) == 304);
static_assert(__builtin_offsetof(Control, later) == 312);
static_assert(__builtin_offsetof(Control, slot_count) == 440);
static_assert(__builtin_offsetof(Control, forwarding_operators) == 444);
static_assert(__builtin_offsetof(Control, syscalls_filtered) == 448);
static_assert(__builtin_offsetof(Control, module_answers) == 452);
static_assert(__builtin_offsetof(Control, recorders_granted) == 456);
static_assert(__builtin_offsetof(Control, ring_limit) == 460);
static_assert(__builtin_offsetof(Control, loader_count_seen) == 464);
static_assert(__builtin_offsetof(Control, access_limit) == 472);
static_assert(__builtin_offsetof(Control, ring_sweeps) == 480);
static_assert(__builtin_offsetof(Control, look_distance) == 488);

struct Tally {
  uint64_t mark_phase;
  uint64_t sampling_order;
  uint64_t clock_ns;
  uint64_t counter_line[13];
  uint64_t arena_next;
  uint64_t stacks_dropped;
  uint64_t ringless_events;
  uint32_t rings_used;
  uint32_t module_requests;
  uint32_t recorders_asked;
  uint32_t abandoned;
  uint64_t loader_count_now;
  uint64_t index_mask;
  uint64_t stack_count;
  uint64_t abandoned_ns;
  uint64_t marks;
  uint64_t access_next;
  uint64_t access_unused;
  uint64_t access_missed;
  uint64_t access_index_bytes;
  uint64_t timed_allocations;
  uint64_t timed_allocation_counts;
  uint64_t timed_releases;
  uint64_t timed_release_counts;
  uint64_t timed_stamp_counts;
  uint64_t timed_passes;
  uint64_t timed_pass_counts;
  uint64_t waited_ns;
  uint64_t mapping_number;
  uint32_t birth;
  uint32_t birth_pid;
  uint32_t birth_epoch;
  uint32_t look_state;
  uint64_t births_missed;
  uint32_t look_tid;
  uint32_t padding;
  uint64_t look_address;
  uint64_t look_size;
  uint64_t unwatched_libraries;
  uint64_t unwatched_until;
};
static_assert(sizeof(Tally) == 376);
static_assert(__builtin_offsetof(Tally, mark_phase) == 0);
static_assert(__builtin_offsetof(Tally, sampling_order) == 8);
static_assert(__builtin_offsetof(Tally, clock_ns) == 16);
static_assert(__builtin_offsetof(Tally, counter_line) == 24);
static_assert(__builtin_offsetof(Tally, arena_next) == 128);
static_assert(__builtin_offsetof(Tally, stacks_dropped) == 136);
static_assert(__builtin_offsetof(Tally, ringless_events) == 144);
static_assert(__builtin_offsetof(Tally, rings_used) == 152);
static_assert(__builtin_offsetof(Tally, module_requests) == 156);
static_assert(__builtin_offsetof(Tally, recorders_asked) == 160);
static_assert(__builtin_offsetof(Tally, abandoned) == 164);
static_assert(__builtin_offsetof(Tally, loader_count_now) == 168);
static_assert(__builtin_offsetof(Tally, index_mask) == 176);
static_assert(__builtin_offsetof(Tally, stack_count) == 184);
static_assert(__builtin_offsetof(Tally, abandoned_ns) == 192);
static_assert(__builtin_offsetof(Tally, marks) == 200);
static_assert(__builtin_offsetof(Tally, access_next) == 208);
static_assert(__builtin_offsetof(Tally, access_unused) == 216);
static_assert(__builtin_offsetof(Tally, access_missed) == 224);
static_assert(__builtin_offsetof(Tally, access_index_bytes) == 232);
static_assert(__builtin_offsetof(Tally, timed_allocations) == 240);
static_assert(__builtin_offsetof(Tally, timed_allocation_counts) == 248);
static_assert(__builtin_offsetof(Tally, timed_releases) == 256);
static_assert(__builtin_offsetof(Tally, timed_release_counts) == 264);
static_assert(__builtin_offsetof(Tally, timed_stamp_counts) == 272);
static_assert(__builtin_offsetof(Tally, timed_passes) == 280);
static_assert(__builtin_offsetof(Tally, timed_pass_counts) == 288);
static_assert(__builtin_offsetof(Tally, waited_ns) == 296);
static_assert(__builtin_offsetof(Tally, mapping_number) == 304);
static_assert(__builtin_offsetof(Tally, birth) == 312);
static_assert(__builtin_offsetof(Tally, birth_pid) == 316);
static_assert(__builtin_offsetof(Tally, birth_epoch) == 320);
static_assert(__builtin_offsetof(Tally, look_state) == 324);
static_assert(__builtin_offsetof(Tally, births_missed) == 328);
static_assert(__builtin_offsetof(Tally, look_tid) == 336);
static_assert(__builtin_offsetof(Tally, padding) == 340);
static_assert(__builtin_offsetof(Tally, look_address) == 344);
static_assert(__builtin_offsetof(Tally, look_size) == 352);
static_assert(__builtin_offsetof(Tally, unwatched_libraries) == 360);
static_assert(__builtin_offsetof(Tally, unwatched_until) == 368);

struct StackBounds {
  uint64_t low;
  uint64_t high;
  uint64_t tid;
  uint64_t unused;
};
static_assert(sizeof(StackBounds) == 32);
static_assert(__builtin_offsetof(StackBounds, low) == 0);
static_assert(__builtin_offsetof(StackBounds, high) == 8);
static_assert(__builtin_offsetof(StackBounds, tid) == 16);
static_assert(__builtin_offsetof(StackBounds, unused) == 24);

struct AccessRecord {
  uint64_t address;
  uint64_t size;
  uint64_t first;
  uint64_t last;
  uint64_t low;
  uint64_t high;
  uint64_t reads;
  uint64_t writes;
  uint64_t thread;
  uint64_t other_reads;
  uint64_t other_writes;
  uint64_t last_writer;
  uint64_t last_write;
  uint64_t false_shares;
  uint64_t next_unused;
  uint64_t pad;
};
static_assert(sizeof(AccessRecord) == 128);
static_assert(__builtin_offsetof(AccessRecord, address) == 0);
static_assert(__builtin_offsetof(AccessRecord, size) == 8);
static_assert(__builtin_offsetof(AccessRecord, first) == 16);
static_assert(__builtin_offsetof(AccessRecord, last) == 24);
static_assert(__builtin_offsetof(AccessRecord, low) == 32);
static_assert(__builtin_offsetof(AccessRecord, high) == 40);
static_assert(__builtin_offsetof(AccessRecord, reads) == 48);
static_assert(__builtin_offsetof(AccessRecord, writes) == 56);
static_assert(__builtin_offsetof(AccessRecord, thread) == 64);
static_assert(__builtin_offsetof(AccessRecord, other_reads) == 72);
static_assert(__builtin_offsetof(AccessRecord, other_writes) == 80);
static_assert(__builtin_offsetof(AccessRecord, last_writer) == 88);
static_assert(__builtin_offsetof(AccessRecord, last_write) == 96);
static_assert(__builtin_offsetof(AccessRecord, false_shares) == 104);
static_assert(__builtin_offsetof(AccessRecord, next_unused) == 112);
static_assert(__builtin_offsetof(AccessRecord, pad) == 120);

struct SlotEntry {
  uint64_t address;
  uint64_t original;
  uint64_t module_base;
  uint32_t function;
  uint32_t variant;
  uint32_t is_wanted;
  uint32_t protection;
  uint64_t expected;
  uint64_t is_permanent;
};
static_assert(sizeof(SlotEntry) == 56);
static_assert(__builtin_offsetof(SlotEntry, address) == 0);
static_assert(__builtin_offsetof(SlotEntry, original) == 8);
static_assert(__builtin_offsetof(SlotEntry, module_base) == 16);
static_assert(__builtin_offsetof(SlotEntry, function) == 24);
static_assert(__builtin_offsetof(SlotEntry, variant) == 28);
static_assert(__builtin_offsetof(SlotEntry, is_wanted) == 32);
static_assert(__builtin_offsetof(SlotEntry, protection) == 36);
static_assert(__builtin_offsetof(SlotEntry, expected) == 40);
static_assert(__builtin_offsetof(SlotEntry, is_permanent) == 48);

struct ModuleEntry {
  uint64_t start;
  uint64_t end;
  uint64_t ret_gadget;
  uint64_t base;
  uint32_t first_row;
  uint32_t row_count;
  uint32_t keeps_frame_pointers;
  uint32_t is_permanent;
};
static_assert(sizeof(ModuleEntry) == 48);
static_assert(__builtin_offsetof(ModuleEntry, start) == 0);
static_assert(__builtin_offsetof(ModuleEntry, end) == 8);
static_assert(__builtin_offsetof(ModuleEntry, ret_gadget) == 16);
static_assert(__builtin_offsetof(ModuleEntry, base) == 24);
static_assert(__builtin_offsetof(ModuleEntry, first_row) == 32);
static_assert(__builtin_offsetof(ModuleEntry, row_count) == 36);
static_assert(__builtin_offsetof(ModuleEntry, keeps_frame_pointers) == 40);
static_assert(__builtin_offsetof(ModuleEntry, is_permanent) == 44);

struct RingHeader {
  uint64_t head;
  uint64_t limit;
  uint64_t outer;
  uint64_t last_tick;
  uint64_t cache_version;
  uint64_t mask;
  uint64_t memo_mask;
  uint64_t sampling;
  uint64_t pc_mask;
  uint64_t folding;
  uint64_t sample_left;
  uint64_t random;
  uint64_t sampling_turn_ns;
  uint64_t sampling_ns;
  uint64_t memo_misses;
  uint64_t memo_window;
  uint64_t dropped;
  uint64_t reentrant;
  uint64_t truncated;
  uint64_t thread_pointer;
  uint64_t first_sp;
  uint64_t memo_checked;
  uint64_t memo_wrong;
  uint64_t nested;
  uint64_t nested_head;
  uint64_t waited_ns;
  uint64_t waited_at_ns;
  uint64_t sample_rest;
  uint64_t sample_shift;
  uint64_t next_look;
  uint64_t described_frames[8];
  uint64_t described_olds[8];
  uint64_t drawn_head;
  uint64_t timed_from;
  uint64_t timed_stamp;
  uint64_t calls_to_timed;
  uint64_t call_from;
  uint64_t call_stamp;
  uint64_t call_counts;
  uint64_t producer_pad[5];
  uint64_t tail;
  uint64_t claimed;
  uint64_t granted;
  uint64_t granted_caches;
  uint64_t consumer_pad[15];
  uint32_t state;
  uint32_t tid;
};
static_assert(sizeof(RingHeader) == 624);
static_assert(__builtin_offsetof(RingHeader, head) == 0);
static_assert(__builtin_offsetof(RingHeader, limit) == 8);
static_assert(__builtin_offsetof(RingHeader, outer) == 16);
static_assert(__builtin_offsetof(RingHeader, last_tick) == 24);
static_assert(__builtin_offsetof(RingHeader, cache_version) == 32);
static_assert(__builtin_offsetof(RingHeader, mask) == 40);
static_assert(__builtin_offsetof(RingHeader, memo_mask) == 48);
static_assert(__builtin_offsetof(RingHeader, sampling) == 56);
static_assert(__builtin_offsetof(RingHeader, pc_mask) == 64);
static_assert(__builtin_offsetof(RingHeader, folding) == 72);
static_assert(__builtin_offsetof(RingHeader, sample_left) == 80);
static_assert(__builtin_offsetof(RingHeader, random) == 88);
static_assert(__builtin_offsetof(RingHeader, sampling_turn_ns) == 96);
static_assert(__builtin_offsetof(RingHeader, sampling_ns) == 104);
static_assert(__builtin_offsetof(RingHeader, memo_misses) == 112);
static_assert(__builtin_offsetof(RingHeader, memo_window) == 120);
static_assert(__builtin_offsetof(RingHeader, dropped) == 128);
static_assert(__builtin_offsetof(RingHeader, reentrant) == 136);
static_assert(__builtin_offsetof(RingHeader, truncated) == 144);
static_assert(__builtin_offsetof(RingHeader, thread_pointer) == 152);
static_assert(__builtin_offsetof(RingHeader, first_sp) == 160);
static_assert(__builtin_offsetof(RingHeader, memo_checked) == 168);
static_assert(__builtin_offsetof(RingHeader, memo_wrong) == 176);
static_assert(__builtin_offsetof(RingHeader, nested) == 184);
static_assert(__builtin_offsetof(RingHeader, nested_head) == 192);
static_assert(__builtin_offsetof(RingHeader, waited_ns) == 200);
static_assert(__builtin_offsetof(RingHeader, waited_at_ns) == 208);
static_assert(__builtin_offsetof(RingHeader, sample_rest) == 216);
static_assert(__builtin_offsetof(RingHeader, sample_shift) == 224);
static_assert(__builtin_offsetof(RingHeader, next_look) == 232);
static_assert(__builtin_offsetof(RingHeader, described_frames) == 240);
static_assert(__builtin_offsetof(RingHeader, described_olds) == 304);
static_assert(__builtin_offsetof(RingHeader, drawn_head) == 368);
static_assert(__builtin_offsetof(RingHeader, timed_from) == 376);
static_assert(__builtin_offsetof(RingHeader, timed_stamp) == 384);
static_assert(__builtin_offsetof(RingHeader, calls_to_timed) == 392);
static_assert(__builtin_offsetof(RingHeader, call_from) == 400);
static_assert(__builtin_offsetof(RingHeader, call_stamp) == 408);
static_assert(__builtin_offsetof(RingHeader, call_counts) == 416);
static_assert(__builtin_offsetof(RingHeader, producer_pad) == 424);
static_assert(__builtin_offsetof(RingHeader, tail) == 464);
static_assert(__builtin_offsetof(RingHeader, claimed) == 472);
static_assert(__builtin_offsetof(RingHeader, granted) == 480);
static_assert(__builtin_offsetof(RingHeader, granted_caches) == 488);
static_assert(__builtin_offsetof(RingHeader, consumer_pad) == 496);
static_assert(__builtin_offsetof(RingHeader, state) == 616);
static_assert(__builtin_offsetof(RingHeader, tid) == 620);

struct StackEntry {
  uint32_t hash;
  uint8_t function;
  uint8_t truncated;
  uint16_t depth;
};
static_assert(sizeof(StackEntry) == 8);
static_assert(__builtin_offsetof(StackEntry, hash) == 0);
static_assert(__builtin_offsetof(StackEntry, function) == 4);
static_assert(__builtin_offsetof(StackEntry, truncated) == 5);
static_assert(__builtin_offsetof(StackEntry, depth) == 6);

struct PythonLayout {
  uint32_t state;
  uint32_t lines;
  uint64_t key;
  uint64_t interpreters;
  uint64_t main_interpreter;
  uint64_t holder;
  uint64_t locked;
  uint64_t code_type;
  uint64_t text_type;
  uint64_t bytes_type;
  uint64_t evaluation;
  uint64_t evaluation_end;
  uint32_t key_values;
  uint32_t frame;
  uint32_t frame_in;
  uint32_t frame_code;
  uint32_t frame_previous;
  uint32_t frame_instruction;
  uint32_t frame_entry;
  uint32_t entry_kind;
  uint32_t instruction_kind;
  uint32_t code_name;
  uint32_t code_file;
  uint32_t code_first_line;
  uint32_t code_lines;
  uint32_t code_instructions;
  uint32_t text_ascii;
  uint32_t text_other;
  uint32_t code_version;
  uint32_t unused;
};
static_assert(sizeof(PythonLayout) == 160);
static_assert(__builtin_offsetof(PythonLayout, state) == 0);
static_assert(__builtin_offsetof(PythonLayout, lines) == 4);
static_assert(__builtin_offsetof(PythonLayout, key) == 8);
static_assert(__builtin_offsetof(PythonLayout, interpreters) == 16);
static_assert(__builtin_offsetof(PythonLayout, main_interpreter) == 24);
static_assert(__builtin_offsetof(PythonLayout, holder) == 32);
static_assert(__builtin_offsetof(PythonLayout, locked) == 40);
static_assert(__builtin_offsetof(PythonLayout, code_type) == 48);
static_assert(__builtin_offsetof(PythonLayout, text_type) == 56);
static_assert(__builtin_offsetof(PythonLayout, bytes_type) == 64);
static_assert(__builtin_offsetof(PythonLayout, evaluation) == 72);
static_assert(__builtin_offsetof(PythonLayout, evaluation_end) == 80);
static_assert(__builtin_offsetof(PythonLayout, key_values) == 88);
static_assert(__builtin_offsetof(PythonLayout, frame) == 92);
static_assert(__builtin_offsetof(PythonLayout, frame_in) == 96);
static_assert(__builtin_offsetof(PythonLayout, frame_code) == 100);
static_assert(__builtin_offsetof(PythonLayout, frame_previous) == 104);
static_assert(__builtin_offsetof(PythonLayout, frame_instruction) == 108);
static_assert(__builtin_offsetof(PythonLayout, frame_entry) == 112);
static_assert(__builtin_offsetof(PythonLayout, entry_kind) == 116);
static_assert(__builtin_offsetof(PythonLayout, instruction_kind) == 120);
static_assert(__builtin_offsetof(PythonLayout, code_name) == 124);
static_assert(__builtin_offsetof(PythonLayout, code_file) == 128);
static_assert(__builtin_offsetof(PythonLayout, code_first_line) == 132);
static_assert(__builtin_offsetof(PythonLayout, code_lines) == 136);
static_assert(__builtin_offsetof(PythonLayout, code_instructions) == 140);
static_assert(__builtin_offsetof(PythonLayout, text_ascii) == 144);
static_assert(__builtin_offsetof(PythonLayout, text_other) == 148);
static_assert(__builtin_offsetof(PythonLayout, code_version) == 152);
static_assert(__builtin_offsetof(PythonLayout, unused) == 156);

struct ProbeConfig {
  uint64_t region;
  uint64_t blocks;
  uint64_t block_bytes;
  uint64_t thread;
  uint64_t values;
  uint64_t stacks;
  uint64_t arguments;
  uint64_t argument_count;
  uint64_t tid_offset;
  uint64_t depth;
};
static_assert(sizeof(ProbeConfig) == 80);
static_assert(__builtin_offsetof(ProbeConfig, region) == 0);
static_assert(__builtin_offsetof(ProbeConfig, blocks) == 8);
static_assert(__builtin_offsetof(ProbeConfig, block_bytes) == 16);
static_assert(__builtin_offsetof(ProbeConfig, thread) == 24);
static_assert(__builtin_offsetof(ProbeConfig, values) == 32);
static_assert(__builtin_offsetof(ProbeConfig, stacks) == 40);
static_assert(__builtin_offsetof(ProbeConfig, arguments) == 48);
static_assert(__builtin_offsetof(ProbeConfig, argument_count) == 56);
static_assert(__builtin_offsetof(ProbeConfig, tid_offset) == 64);
static_assert(__builtin_offsetof(ProbeConfig, depth) == 72);

struct ProbeThread {
  uint64_t busy;
  uint64_t tid;
  uint64_t ring;
  uint64_t first_sp;
  uint64_t rest[4];
};
static_assert(sizeof(ProbeThread) == 64);
static_assert(__builtin_offsetof(ProbeThread, busy) == 0);
static_assert(__builtin_offsetof(ProbeThread, tid) == 8);
static_assert(__builtin_offsetof(ProbeThread, ring) == 16);
static_assert(__builtin_offsetof(ProbeThread, first_sp) == 24);
static_assert(__builtin_offsetof(ProbeThread, rest) == 32);

struct MarkEntry {
  uint64_t number;
  uint64_t time_ns;
  uint64_t name[14];
};
static_assert(sizeof(MarkEntry) == 128);
static_assert(__builtin_offsetof(MarkEntry, number) == 0);
static_assert(__builtin_offsetof(MarkEntry, time_ns) == 8);
static_assert(__builtin_offsetof(MarkEntry, name) == 16);

struct HookDescription {
  uint64_t magic[2];
  uint64_t own_address;
  uint32_t version;
  uint32_t functions;
  uint32_t variants;
  uint32_t tables;
  uint64_t wrappers;
  uint64_t selective_wrappers;
  uint64_t originals;
  uint64_t gate;
  uint64_t region;
  uint64_t emitting_wrappers;
};
static_assert(sizeof(HookDescription) == 88);
static_assert(__builtin_offsetof(HookDescription, magic) == 0);
static_assert(__builtin_offsetof(HookDescription, own_address) == 16);
static_assert(__builtin_offsetof(HookDescription, version) == 24);
static_assert(__builtin_offsetof(HookDescription, functions) == 28);
static_assert(__builtin_offsetof(HookDescription, variants) == 32);
static_assert(__builtin_offsetof(HookDescription, tables) == 36);
static_assert(__builtin_offsetof(HookDescription, wrappers) == 40);
static_assert(__builtin_offsetof(HookDescription, selective_wrappers) == 48);
static_assert(__builtin_offsetof(HookDescription, originals) == 56);
static_assert(__builtin_offsetof(HookDescription, gate) == 64);
static_assert(__builtin_offsetof(HookDescription, region) == 72);
static_assert(__builtin_offsetof(HookDescription, emitting_wrappers) == 80);

struct Exchange {
  uint64_t address;
  uint64_t from;
  uint64_t to;
  uint32_t protection;
  uint32_t state;
};
static_assert(sizeof(Exchange) == 32);
static_assert(__builtin_offsetof(Exchange, address) == 0);
static_assert(__builtin_offsetof(Exchange, from) == 8);
static_assert(__builtin_offsetof(Exchange, to) == 16);
static_assert(__builtin_offsetof(Exchange, protection) == 24);
static_assert(__builtin_offsetof(Exchange, state) == 28);

}  // namespace memhook::abi

#define MEMHOOK_HOOKED_FUNCTIONS(X) \
  X(0, malloc, Size) \
  X(1, free, Free) \
  X(2, calloc, CountSize) \
  X(3, realloc, Realloc) \
  X(4, reallocarray, ReallocArray) \
  X(5, cfree, Free) \
  X(6, memalign, AlignSize) \
  X(7, aligned_alloc, AlignSize) \
  X(8, posix_memalign, PosixMemalign) \
  X(9, valloc, Size) \
  X(10, pvalloc, Size) \
  X(11, _Znwm, Size) \
  X(12, _Znam, Size) \
  X(13, _ZnwmRKSt9nothrow_t, SizeX) \
  X(14, _ZnamRKSt9nothrow_t, SizeX) \
  X(15, _ZnwmSt11align_val_t, SizeX) \
  X(16, _ZnamSt11align_val_t, SizeX) \
  X(17, _ZnwmSt11align_val_tRKSt9nothrow_t, SizeXX) \
  X(18, _ZnamSt11align_val_tRKSt9nothrow_t, SizeXX) \
  X(19, _ZdlPv, Free) \
  X(20, _ZdaPv, Free) \
  X(21, _ZdlPvm, FreeX) \
  X(22, _ZdaPvm, FreeX) \
  X(23, _ZdlPvRKSt9nothrow_t, FreeX) \
  X(24, _ZdaPvRKSt9nothrow_t, FreeX) \
  X(25, _ZdlPvSt11align_val_t, FreeX) \
  X(26, _ZdaPvSt11align_val_t, FreeX) \
  X(27, _ZdlPvSt11align_val_tRKSt9nothrow_t, FreeXX) \
  X(28, _ZdaPvSt11align_val_tRKSt9nothrow_t, FreeXX) \
  X(29, _ZdlPvmSt11align_val_t, FreeXX) \
  X(30, _ZdaPvmSt11align_val_t, FreeXX) \
  X(31, mallocx, SizeX) \
  X(32, rallocx, Rallocx) \
  X(33, xallocx, Xallocx) \
  X(34, dallocx, FreeX) \
  X(35, sdallocx, FreeXX) \
  X(36, tc_malloc, Size) \
  X(37, tc_free, Free) \
  X(38, tc_calloc, CountSize) \
  X(39, tc_realloc, Realloc) \
  X(40, tc_memalign, AlignSize) \
  X(41, tc_posix_memalign, PosixMemalign) \
  X(42, tc_new, Size) \
  X(43, tc_newarray, Size) \
  X(44, tc_delete, Free) \
  X(45, tc_deletearray, Free) \
  X(46, dlopen, Dlopen) \
  X(47, dlmopen, Dlmopen) \
  X(48, dlclose, Dlclose) \
  X(49, mmap, Mmap) \
  X(50, mmap64, Mmap) \
  X(51, mremap, Mremap) \
  X(52, munmap, Munmap) \
  X(53, brk, Brk) \
  X(54, sbrk, Sbrk) \
  X(55, madvise, Madvise) \
  X(56, shmat, Shmat) \
  X(57, shmdt, Shmdt) \
  X(58, memhook_access_listener, Access) \
  X(59, memhook_mark_listener, Mark) \
  X(60, memcpy, CopyBytes) \
  X(61, memmove, CopyBytes) \
  X(62, mempcpy, CopyBytes) \
  X(63, memset, FillBytes) \
  X(64, memcmp, CompareBytes) \
  X(65, bcmp, CompareBytes) \
  X(66, strlen, StringLength) \
  X(67, __memcpy_chk, CopyBytes) \
  X(68, __memmove_chk, CopyBytes) \
  X(69, __memset_chk, FillBytes) \
  X(70, read, ReadInto) \
  X(71, __read_chk, ReadInto) \
  X(72, pread, ReadInto) \
  X(73, pread64, ReadInto) \
  X(74, recv, ReadInto) \
  X(75, __recv_chk, ReadInto) \
  X(76, recvfrom, ReadInto) \
  X(77, write, WriteFrom) \
  X(78, pwrite, WriteFrom) \
  X(79, pwrite64, WriteFrom) \
  X(80, send, WriteFrom) \
  X(81, sendto, WriteFrom) \
  X(82, fread, ReadItems) \
  X(83, fwrite, WriteItems) \
  X(84, fork, Fork) \
  X(85, __fork, Fork) \
  X(86, _Fork, Fork) \
  X(87, free_sized, FreeX) \
  X(88, free_aligned_sized, FreeXX) \
  X(89, mi_malloc, SizeXX) \
  X(90, mi_malloc_aligned, SizeXX) \
  X(91, mi_zalloc, SizeXX) \
  X(92, mi_calloc, CountSizeXX) \
  X(93, mi_realloc, ReallocXX) \
  X(94, mi_recalloc, ReallocArrayXX) \
  X(95, mi_heap_malloc, XSizeXX) \
  X(96, mi_heap_calloc, XCountSizeXX) \
  X(97, mi_heap_realloc, XReallocXX) \
  X(98, mi_heap_recalloc, XReallocArrayXX) \
  X(99, rpaligned_realloc, ReallocXSizeXX) \
  X(100, sn_rust_realloc, ReallocXXSize) \
  X(101, mi_memalign, AlignSize) \
  X(102, mi_posix_memalign, PosixMemalign)
