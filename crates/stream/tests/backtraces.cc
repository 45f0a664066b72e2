// Random stacks through the hook's own unwinding, in the region of descriptor argv[1], with the seed argv[2], argv[3]
// times. Some words of a stack change between two backtraces, as through calls and returns. Each backtrace that the
// hook finds with its memory is compared with one that is unwound from scratch. So many backtraces are different that
// the index of the stack table grows several times; none may be lost. Prints "ID FUNCTION TRUNCATED FRAMES..." for some
// of them, which the reader compares with the region.
#include "backtrace.hpp"
#include "budget.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <sys/stat.h>

using namespace memhook;

// Values that the attacher would write for the hook.
template <typename T>
static T* tells(uint64_t offset) {
  return const_cast<T*>(in_guide<T>(offset));
}

static uint64_t state;

// splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014)
static uint64_t draw() {
  uint64_t z = state += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}
static uint64_t below(uint64_t n) { return draw() % n; }

static constexpr uint64_t code = 0x5000'0000, sites = 64, site_bytes = 16;
static constexpr uint64_t words = 2048;
alignas(4096) static uint64_t stack[words];

static uint64_t rule(uint64_t kind, uint64_t offset, uint64_t rbp_kind, int64_t rbp_offset) {
  return kind | rbp_kind << 8 | static_cast<uint64_t>(static_cast<uint16_t>(rbp_offset)) << 16 | offset << 32;
}

// A rule for each call site: mostly a rule of a compiler, rarely one that ends a backtrace.
static void write_rules() {
  auto* offsets = tells<uint32_t>(row_offsets_offset);
  auto* numbers = tells<uint16_t>(row_rules_offset);
  auto* rules = tells<uint64_t>(rules_offset);
  for (uint64_t i = 0; i < sites; i++) {
    offsets[i] = static_cast<uint32_t>(i * site_bytes);
    numbers[i] = static_cast<uint16_t>(i);
    uint64_t size = 32 + 32 * below(3), choice = below(64);
    if (choice == 0)
      rules[i] = i % 2 ? uint64_t{cfa_stop} : uint64_t{cfa_end};
    else if (choice < 3)
      rules[i] = cfa_plt;
    else if (choice < 6)
      rules[i] = rule(cfa_at_rbp, -8ull, rbp_at_rbp, 0);
    else if (choice < 12)
      rules[i] = rule(cfa_rbp, 16, rbp_at_cfa, -16);
    else if (choice < 40)
      rules[i] = rule(cfa_rsp, size, rbp_at_cfa, -16);
    else
      rules[i] = rule(cfa_rsp, size, rbp_same, 0);
  }
  for (uint64_t list = 0; list < 2; list++)
    tells<ModuleEntry>(modules_offset)[list * max_modules] = {code, code + sites * site_bytes, 0, code, 0, sites, 0, 0};
}

static uint64_t return_address() { return code + below(sites) * site_bytes + 1 + below(site_bytes - 1); }

// A word of the stack. Frames begin at every fourth word, above the words that the previous step reads: the CFA in a
// realigned frame, the caller's rbp, the return address. Occasionally, it is an arbitrary word.
static uint64_t any_word(uint64_t at) {
  uint64_t choice = below(1'000);
  if (choice == 0) return draw() >> 8;  // no frame has the bits that say what else an entry is
  if (choice == 1) return 0;
  if (at % 4 == 0 || at % 4 == 3 || choice == 2) return return_address();
  uint64_t up = (at & ~3ull) + 4 * (1 + below(20)) + (at % 4 == 2 ? 2 : 0);
  return reinterpret_cast<uint64_t>(&stack[up < words ? up : words - 2]);
}

static void change_modules() {
  uint64_t list = control()->module_list;
  // Another table under the next version, for both lists: they have the same rules.
  write_rules();
  tells<Control>(0)->module_list = (((list >> 32) + 1) << 32) | 1;
}

// Returns true if an entry of the stack table is this backtrace.
static bool is_entry_of(uint32_t id, uint32_t function, const uint64_t* pcs, uint32_t count, bool truncated) {
  auto* entry = in_report<StackEntry>(arena_offset + uint64_t{id} * granule_bytes);
  if (entry->function != function || entry->truncated != truncated || entry->depth != count) return false;
  return memcmp(entry + 1, pcs, count * sizeof *pcs) == 0;
}

// Unwinds from scratch, with no cache except the cache of rules.
static uint32_t unwind_anew(RingHeader* ring, Frame frame, uint64_t* pcs, bool* truncated) {
  NoTrace none;
  uint64_t tag = module_list() >> 32 << 48;
  Position start{frame[1], reinterpret_cast<uint64_t>(frame + 2), frame[0]};
  return unwind(ring, tag, start, pcs, gate().depth, truncated, none);
}

int main(int, char** argv) {
  int file = atoi(argv[1]);
  struct stat info;
  if (fstat(file, &info) != 0) return 2;
  region = static_cast<unsigned char*>(
      mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  if (region == MAP_FAILED) return 3;
  state = strtoull(argv[2], nullptr, 0);
  uint64_t rounds = strtoull(argv[3], nullptr, 0);
  Gate& g = gate();
  g.epoch = g.last_epoch = control()->epoch;
  trusted.ring_bytes = control()->ring_bytes;
  trusted.guide_epoch = control()->epoch;
  trusted.may_call = true;
  g.ring_mask = trusted.ring_bytes / sizeof(RawEvent) - 1;
  g.recorders = nobody;
  g.tid_offset = 720;  // of glibc
  uint32_t epoch = epoch_now();
  static const uint32_t depths[] = {1, 2, 7, 8, 9, 10, 16, 17, 40, 64, 100, 128};
  RingHeader* ring = ring_of(epoch, reinterpret_cast<uint64_t>(&epoch));
  if (!ring) return 4;
  // With space for an unwinding everywhere (stack_room.hpp).
  uint64_t place = (reinterpret_cast<uint64_t>(ring) - reinterpret_cast<uint64_t>(region)) >> bounds_shift;
  StackBounds* bounds = tells<StackBounds>(bounds_offset) + place;
  bounds->low = reinterpret_cast<uint64_t>(&stack[0]) - room_for_unwinding;
  bounds->high = reinterpret_cast<uint64_t>(&stack[words]);
  uint64_t compared = 0, frames = 0;
  for (uint64_t round = 0; round < rounds; round++) {
    if (round % 5'000 == 0) {
      g.depth = depths[below(sizeof depths / sizeof *depths)];
      g.memo_words = 2 * g.depth;
      g.memo_bytes = (memo_header_bytes + (g.memo_words + 3) / 4 * memo_block_bytes + 63) / 64 * 64;
      g.memo_mask = memos_in(ring_prefix_bytes - memo_offset) - 1;
      g.first_memo_mask = memos_in(memo_first_bytes) - 1;
      memset(in_ring(ring, memo_offset), 0, ring_prefix_bytes - memo_offset);
      // Another owner, and all possible space.
      use_caches(ring, true);
      change_modules();
      for (uint64_t i = 0; i < words; i++) stack[i] = any_word(i);
    }
    if (below(5'000) == 0) change_modules();
    // The upper end: words outside of bounds that have moved must not count.
    if (below(2'000) == 0)
      bounds->high = reinterpret_cast<uint64_t>(&stack[words - below(4) * 8]);
    uint64_t at = 2 + 4 * (below(4) == 0 ? below(words / 4 - 50) : 75 + below(4));
    // Near the innermost frame more often than far from it.
    for (uint64_t changes = below(3) ? 0 : 1 + below(4); changes > 0; changes--) {
      uint64_t word = at + below(below(3) == 0 ? 400 : 30);
      if (word < words) stack[word] = any_word(word);
    }
        if (below(8) == 0) stack[at + 1] = return_address();
    Frame frame = &stack[at];
    uint32_t function = static_cast<uint32_t>(below(3));
    // Other events between the unwindings, so that unwindings seem rare enough to be worth remembering.
    ring->head += 32;
    uint32_t id = capture_stack(ring, function, frame);
    uint64_t pcs[max_depth];
    bool truncated = false;
    uint32_t count = unwind_anew(ring, frame, pcs, &truncated);
    if (id == 0) {
      fprintf(stderr, "round %lu: the table is full: %lu bytes of %lu, %lu entries, mask %lx\n", round, tally()->arena_next * granule_bytes, control()->arena_limit, tally()->stack_count, tally()->index_mask);
      return 5;
    }
    if (!is_entry_of(id, function, pcs, count, truncated)) {
      fprintf(stderr, "round %lu, depth %u: another backtrace than from scratch\n", round, g.depth);
      return 1;
    }
    compared++;
    frames += count;
    if (round % 5'000 < 4) {
      printf("%u %u %u", id, function, truncated);
      for (uint32_t i = 0; i < count; i++) printf(" %lu", pcs[i]);
      printf("\n");
    }
  }
  fprintf(stderr, "%lu backtraces of %lu frames agree, %lu of them unwound; %lu different ones\n", compared, frames,
          ring->memo_misses, tally()->stack_count);
  return tally()->stacks_dropped == 0 ? 0 : 6;
}
