// Counts reads and writes of the program by block.
//
// The access runtime that the program links to calls our listener on each read and write. We look up the block in an
// index of our own, and count the access in the block's record in the region. The attacher reads the record if the
// block is still live at the end. When a block is released, the counts are written to the ring, directly before the
// release, and the record is used for the next block.
//
// The index is a table of three levels: gigabytes, pages, and granules of 16 bytes. A page that belongs to one block as
// a whole needs no granules. Readers take no lock, because an entry is one word. All tables are in one private mapping,
// reserved in one step. One call can therefore free it, and a forked child gets none of its contents.
//
// Nothing here may harm the program, however it uses its blocks. Tables and records are never unmapped, so at worst a
// late access to a released block finds a stale record number, and counts for another block.
#pragma once
#include "ring.hpp"

namespace memhook {

inline constexpr uint64_t access_unit = 1024;  // bytes of a table of granules; others are multiples of it
inline constexpr uint64_t access_granules = 256, access_pages = 1 << 18, access_gigabytes = 1 << 17;

// A larger block gets no record. Otherwise the program would wait in malloc until all pages of the block are in the
// index, and would be charged for the memory of the index.
inline constexpr uint64_t most_accessed_bytes = 1ull << 30;

struct AccessIndex {
  unsigned char* base;
  uint64_t units;  // number of existing units
  uint64_t next;   // first unused one; tables of gigabytes take those at the beginning
};
inline AccessIndex access_index;

// Reserves memory for the index; returns 0 if there is none. In a program that locks all memory that it maps
// (mlockall(2)), the whole reservation would become resident immediately. So a single page is mapped and unlocked, and
// then grown, which leaves the added memory unlocked too.
inline uint64_t reserve_access_index(uint64_t bytes) {
  constexpr long page = 4096, none = 0, read_write = 3, private_anonymous_noreserve = 0x4022;
  // As with the region, no other code maps anything at this address.
  long hint = static_cast<long>(reinterpret_cast<uint64_t>(region) - 2 * bytes);
  auto fails = [](long result) { return result < 0 && result > -4096; };
  if (__atomic_load_n(&control()->syscalls_filtered, __ATOMIC_RELAXED)) {
    long start =
        sys::call(sys::nr_mmap, hint, static_cast<long>(bytes), read_write, private_anonymous_noreserve, -1, 0);
    return fails(start) ? 0 : static_cast<uint64_t>(start);
  }
  long start = sys::call(sys::nr_mmap, hint, page, none, private_anonymous_noreserve, -1, 0);
  if (fails(start)) return 0;
  if (sys::call(sys::nr_munlock, start, page) == 0 &&
      !fails(sys::call(sys::nr_mremap, start, page, static_cast<long>(bytes), 0))) {
    if (sys::call(sys::nr_mprotect, start, static_cast<long>(bytes), read_write) == 0)
      return static_cast<uint64_t>(start);
    sys::call(sys::nr_munmap, start, static_cast<long>(bytes));
    return 0;
  }
  sys::call(sys::nr_munmap, start, page);
  return 0;
}

// Empties the index, and reserves its memory on the first call. If that fails, no block gets a record.
[[gnu::noinline, gnu::cold]] inline void open_access_index() {
  constexpr long madv_dontneed = 4, madv_dontdump = 16, madv_wipeonfork = 18;
  AccessIndex& index = access_index;
  for (uint64_t bytes = 1ull << 36; !index.base && bytes >= 1ull << 28; bytes >>= 2) {
    uint64_t start = reserve_access_index(bytes);
    if (start == 0) continue;
    // Our counts are useless to a child, and copying them would make a fork slower.
    sys::call(sys::nr_madvise, static_cast<long>(start), static_cast<long>(bytes), madv_wipeonfork);
    sys::call(sys::nr_madvise, static_cast<long>(start), static_cast<long>(bytes), madv_dontdump);
    index.base = reinterpret_cast<unsigned char*>(start);
    index.units = bytes / access_unit;
  }
  if (!index.base) return;
  __atomic_store_n(&tally()->access_index_bytes, 0, __ATOMIC_RELAXED);
  sys::call(sys::nr_madvise, reinterpret_cast<long>(index.base), static_cast<long>(index.units * access_unit),
            madv_dontneed);
  __atomic_store_n(&index.next, access_gigabytes * 8 / access_unit, __ATOMIC_RELEASE);
}

// Frees the memory of the index. Threads that are still reading it find it empty.
[[gnu::noinline, gnu::cold]] inline void close_access_index() {
  constexpr long madv_dontneed = 4;
  const AccessIndex& index = access_index;
  if (!index.base || __atomic_load_n(&control()->syscalls_filtered, __ATOMIC_RELAXED)) return;
  sys::call(sys::nr_madvise, reinterpret_cast<long>(index.base), static_cast<long>(index.units * access_unit),
            madv_dontneed);
}

template <typename T>
inline T* access_table(uint64_t unit) {
  return reinterpret_cast<T*>(access_index.base + unit * access_unit);
}

// Returns new zeroed tables, or 0 if there is no memory. Touched memory is charged to the control groups of the
// program, so the attacher sets the limit after checking theirs.
inline uint64_t take_access_units(uint64_t count, uint64_t charged_bytes) {
  const Control* c = control();
  uint64_t limit = __atomic_load_n(&c->access_index_limit, __ATOMIC_RELAXED);
  uint64_t before = __atomic_fetch_add(&tally()->access_index_bytes, charged_bytes, __ATOMIC_RELAXED);
  if (before > limit || charged_bytes > limit - before) {
    __atomic_fetch_sub(&tally()->access_index_bytes, charged_bytes, __ATOMIC_RELAXED);
    return 0;
  }
  uint64_t first = __atomic_fetch_add(&access_index.next, count, __ATOMIC_RELAXED);
  return first + count <= access_index.units ? first : 0;
}

// Returns the entry of a page. The lower half is the number of the record if the page belongs to one block, and the
// upper half is the unit of its granules. Null if the page has no entry.
inline uint64_t* access_page(uint64_t address) {
  if (!access_index.base || address >> 47) return nullptr;
  uint64_t unit = __atomic_load_n(access_table<uint64_t>(0) + (address >> 30), __ATOMIC_ACQUIRE);
  return unit ? access_table<uint64_t>(unit) + ((address >> 12) & (access_pages - 1)) : nullptr;
}

inline uint64_t* make_access_page(uint64_t address) {
  if (!access_index.base || address >> 47) return nullptr;
  uint64_t* top = access_table<uint64_t>(0) + (address >> 30);
  uint64_t unit = __atomic_load_n(top, __ATOMIC_ACQUIRE);
  if (!unit) {
    // The pages of the table are touched one by one, each for 2 MiB of the program's memory. Only the first page is
    // charged here.
    uint64_t taken = take_access_units(access_pages * 8 / access_unit, 4096);
    if (!taken) return nullptr;
    // Another thread may have been faster. The units taken then stay unused, and cost nothing.
    if (__atomic_compare_exchange_n(top, &unit, taken, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) unit = taken;
  }
  return access_table<uint64_t>(unit) + ((address >> 12) & (access_pages - 1));
}

inline uint32_t* granules_of(uint64_t entry) { return entry >> 32 ? access_table<uint32_t>(entry >> 32) : nullptr; }

inline uint32_t* make_granules(uint64_t* page) {
  uint64_t entry = __atomic_load_n(page, __ATOMIC_ACQUIRE);
  while (!(entry >> 32)) {
    uint64_t taken = take_access_units(1, access_unit);
    if (!taken) return nullptr;
    uint64_t with = (entry & 0xffff'ffff) | taken << 32;
    if (__atomic_compare_exchange_n(page, &entry, with, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) entry = with;
  }
  return granules_of(entry);
}

// Returns the number of the record of the block that contains an address; 0 if there is no such block.
inline uint32_t find_accessed(uint64_t address) {
  uint64_t* page = access_page(address);
  if (!page) return 0;
  uint64_t entry = __atomic_load_n(page, __ATOMIC_ACQUIRE);
  if (entry & 0xffff'ffff) return static_cast<uint32_t>(entry);
  uint32_t* granules = granules_of(entry);
  return granules ? __atomic_load_n(granules + ((address >> 4) & (access_granules - 1)), __ATOMIC_ACQUIRE) : 0;
}

// Enters a block into the index or, if `to` is 0, removes it. Returns false if there is no memory for it.
[[gnu::noinline]] inline bool mark_accessed(uint64_t start, uint64_t size, uint32_t from, uint32_t to) {
  uint64_t end = (start + (size ? size : 1) + 15) & ~15ull;
  for (uint64_t at = start; at < end;) {
    uint64_t page_start = at & ~4095ull, page_end = page_start + 4096;
    uint64_t* page = to ? make_access_page(at) : access_page(at);
    if (!page) return false;
    if (at == page_start && end >= page_end) {
      // The lower half, because the processor is little-endian (see abi).
      auto* whole = reinterpret_cast<uint32_t*>(page);
      if (to || __atomic_load_n(whole, __ATOMIC_RELAXED) == from) __atomic_store_n(whole, to, __ATOMIC_RELEASE);
      at = page_end;
      continue;
    }
    uint32_t* granules = to ? make_granules(page) : granules_of(__atomic_load_n(page, __ATOMIC_ACQUIRE));
    if (!granules) return false;
    for (; at < end && at < page_end; at += 16) {
      uint32_t* granule = granules + ((at >> 4) & (access_granules - 1));
      if (to || __atomic_load_n(granule, __ATOMIC_RELAXED) == from) __atomic_store_n(granule, to, __ATOMIC_RELEASE);
    }
  }
  return true;
}

inline AccessRecord* access_record(uint32_t number) { return in_report<AccessRecord>(access_offset) + number; }

// Returns an unused record; 0 if there is none.
inline uint32_t take_access_record() {
  const Control* c = control();
  uint64_t list = __atomic_load_n(&tally()->access_unused, __ATOMIC_ACQUIRE);
  while (auto number = static_cast<uint32_t>(list)) {
    if (number >= access_records) return 0;  // the region is damaged
    uint64_t next = __atomic_load_n(&access_record(number)->next_unused, __ATOMIC_RELAXED);
    // The count makes the exchange fail if the record was taken and put back meanwhile.
    uint64_t with = ((list >> 32) + 1) << 32 | (next & 0xffff'ffff);
    if (__atomic_compare_exchange_n(&tally()->access_unused, &list, with, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
      return number;
  }
  uint64_t limit = __atomic_load_n(&c->access_limit, __ATOMIC_ACQUIRE);
  if (limit > access_records) limit = access_records;
  uint64_t next = __atomic_load_n(&tally()->access_next, __ATOMIC_RELAXED);
  while (next < limit)
    if (__atomic_compare_exchange_n(&tally()->access_next, &next, next + 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      return static_cast<uint32_t>(next);
  return 0;
}

inline void put_access_record(uint32_t number) {
  uint64_t list = __atomic_load_n(&tally()->access_unused, __ATOMIC_ACQUIRE), with;
  do {
    __atomic_store_n(&access_record(number)->next_unused, list & 0xffff'ffff, __ATOMIC_RELAXED);
    with = ((list >> 32) + 1) << 32 | number;
  } while (
      !__atomic_compare_exchange_n(&tally()->access_unused, &list, with, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
}

inline void forget_accesses(uint32_t number, AccessRecord* r, uint64_t address) {
  mark_accessed(address, __atomic_load_n(&r->size, __ATOMIC_RELAXED), number, 0);
  put_access_record(number);
}

// Starts counting accesses to this block. pre: the block has not been returned to the program yet.
[[gnu::noinline]] inline void begin_accesses(uint64_t address, uint64_t size) {
  // The release of the previous block at this address may have been missed.
  if (uint32_t old = find_accessed(address)) {
    AccessRecord* r = access_record(old);
    uint64_t start = __atomic_load_n(&r->address, __ATOMIC_RELAXED);
    if (start && __atomic_compare_exchange_n(&r->address, &start, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
      forget_accesses(old, r, start);
  }
  // Two blocks can share a granule only if one of them begins in the middle of it.
  bool has_room = address % 16 == 0 && size <= most_accessed_bytes;
  uint32_t number = has_room ? take_access_record() : 0;
  if (!number) {
    __atomic_fetch_add(&tally()->access_missed, 1, __ATOMIC_RELAXED);
    return;
  }
  AccessRecord* r = access_record(number);
  uint64_t* zeros[] = {&r->first,       &r->last,         &r->high,        &r->reads,      &r->writes,      &r->thread,
                       &r->other_reads, &r->other_writes, &r->last_writer, &r->last_write, &r->false_shares};
  for (uint64_t* word : zeros) __atomic_store_n(word, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&r->low, ~0ull, __ATOMIC_RELAXED);
  __atomic_store_n(&r->size, size, __ATOMIC_RELAXED);
  __atomic_store_n(&r->address, address, __ATOMIC_RELEASE);
  if (mark_accessed(address, size, 0, number)) return;
  __atomic_store_n(&r->address, 0, __ATOMIC_RELEASE);
  forget_accesses(number, r, address);
  __atomic_fetch_add(&tally()->access_missed, 1, __ATOMIC_RELAXED);
}

inline void write_access_words(RingHeader* ring, uint64_t index, const uint64_t (&words)[4]) {
  if (!reserve(ring)) return;
  uint64_t head = ring->head;
  for (uint64_t i = 0; i < 2; i++)
    event_at(ring, head++) = {(words[2 * i] & address_mask) | op_access << 45 | (index + i) << 53, words[2 * i + 1]};
  __atomic_store_n(&ring->head, head, __ATOMIC_RELEASE);
}

// Writes the counts of a block to the ring, and clears them. The release has to follow. pre: begin_recording() was
// called.
[[gnu::noinline]] inline void end_accesses(RingHeader* ring, uint64_t address) {
  uint32_t number = find_accessed(address);
  if (!number) return;
  AccessRecord* r = access_record(number);
  uint64_t start = address;
  if (!__atomic_compare_exchange_n(&r->address, &start, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return;
  auto word = [](const uint64_t& w) { return __atomic_load_n(&w, __ATOMIC_RELAXED); };
  uint64_t other_reads = word(r->other_reads), other_writes = word(r->other_writes);
  uint64_t several = other_reads + other_writes ? 1ull << 44 : 0;
  uint64_t shares = word(r->false_shares);
  uint64_t most_shares = (1ull << 44) - 1;
  uint64_t high = word(r->high);
  write_access_words(
      ring, 0, {address >> 3, word(r->first), several | (shares < most_shares ? shares : most_shares), word(r->last)});
  write_access_words(ring, 2,
                     {high ? word(r->low) : 0, word(r->reads) + other_reads, high, word(r->writes) + other_writes});
  forget_accesses(number, r, address);
}

inline void count_access(uint64_t& own, uint64_t& others, bool is_own) {
  // Only the owner writes its counter.
  if (is_own)
    __atomic_store_n(&own, __atomic_load_n(&own, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
  else
    __atomic_fetch_add(&others, 1, __ATOMIC_RELAXED);
}

// Checks whether two threads wrote to the same cache line, but to different bytes of it.
inline void look_for_false_sharing(AccessRecord* r, uint64_t me, uint64_t start, uint64_t offset, uint64_t bytes) {
  uint64_t last = __atomic_load_n(&r->last_write, __ATOMIC_RELAXED);
  uint64_t writer = __atomic_load_n(&r->last_writer, __ATOMIC_RELAXED);
  uint64_t last_offset = last >> 16, last_bytes = last & 0xffff;
  bool is_near = (start + offset) / 64 == (start + last_offset) / 64;
  bool is_apart = offset + bytes <= last_offset || last_offset + last_bytes <= offset;
  if (writer && writer != me && is_near && is_apart) __atomic_fetch_add(&r->false_shares, 1, __ATOMIC_RELAXED);
  if (writer != me) __atomic_store_n(&r->last_writer, me, __ATOMIC_RELAXED);
  __atomic_store_n(&r->last_write, offset << 16 | (bytes < 0xffff ? bytes : 0xffff), __ATOMIC_RELAXED);
}

// Counts a read or write of these bytes by the program.
[[gnu::noinline]] inline void note_access(uint64_t address, uint64_t bytes, bool is_write) {
  uint32_t number = find_accessed(address);
  if (!number) return;
  AccessRecord* r = access_record(number);
  uint64_t start = __atomic_load_n(&r->address, __ATOMIC_ACQUIRE);
  uint64_t offset = address - start, end = offset + bytes;
  // The record now belongs to another block.
  if (!start || offset > __atomic_load_n(&r->size, __ATOMIC_RELAXED) + 16) return;
  uint64_t time = gate().clock_mode == clock_coarse || gate().clock_mode == clock_attacher
                      ? __atomic_load_n(&tally()->clock_ns, __ATOMIC_RELAXED)
                      : precise_time();
  uint64_t none = 0;
  if (__atomic_load_n(&r->first, __ATOMIC_RELAXED) == 0)
    __atomic_compare_exchange_n(&r->first, &none, time, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  __atomic_store_n(&r->last, time, __ATOMIC_RELAXED);
  uint64_t low = __atomic_load_n(&r->low, __ATOMIC_RELAXED);
  while (offset < low &&
         !__atomic_compare_exchange_n(&r->low, &low, offset, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  uint64_t high = __atomic_load_n(&r->high, __ATOMIC_RELAXED);
  while (end > high && !__atomic_compare_exchange_n(&r->high, &high, end, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  uint64_t me = cpu::thread_pointer();
  uint64_t owner = __atomic_load_n(&r->thread, __ATOMIC_RELAXED);
  if (owner == 0 && __atomic_compare_exchange_n(&r->thread, &owner, me, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    owner = me;
  if (is_write) {
    count_access(r->writes, r->other_writes, owner == me);
    look_for_false_sharing(r, me, start, offset, bytes);
  } else {
    count_access(r->reads, r->other_reads, owner == me);
  }
}

}  // namespace memhook
