// Mappings: mmap and related functions, traced if the attacher has patched their slots (--mappings).
//
// Mappings are ordered by one sequence for the whole process, because a call can affect any range of addresses, so the
// sequence word of a single page is not enough. A call that unmaps or replaces something takes the next number before
// it enters the kernel, and publishes its event after it has succeeded. A call that has mapped something reads the
// current number after the kernel has returned, and publishes its event before the program gets the address. A range is
// free for a new owner only after the kernel has unmapped it, so the new owner reads at least the number of that call.
// So a mapping with number v is newer than all calls numbered up to v, and older than all later ones, regardless of
// when their events arrive.
//
// Calls from inside an allocator's function belong to the allocator, like all calls inside another hooked call:
// begin_call() skips them. Mappings are not sampled.
#pragma once
#include "calls.hpp"

namespace memhook {

inline constexpr uint64_t page_bytes = 4096;

inline uint64_t up_to_page(uint64_t bytes) { return (bytes + page_bytes - 1) & ~(page_bytes - 1); }

inline uint32_t next_mapping_number() {
  return static_cast<uint32_t>(__atomic_add_fetch(&tally()->mapping_number, 1, __ATOMIC_ACQ_REL));
}

inline uint32_t mapping_number() {
  return static_cast<uint32_t>(__atomic_load_n(&tally()->mapping_number, __ATOMIC_ACQUIRE));
}

// Writes the event and its size, which become visible together. pre: the thread is recording.
inline void commit_mapping(RingHeader* ring, uint64_t op, uint64_t address, uint64_t bytes, uint32_t number,
                           uint32_t stack) {
  if (!reserve(ring)) return;
  uint64_t head = ring->head;
  uint64_t time = __atomic_load_n(&tally()->clock_ns, __ATOMIC_RELAXED);
  if (gate().clock_mode != clock_coarse) time = gate().clock_mode == clock_attacher ? ring->last_tick : precise_time();
  write_tick(ring, head, time);
  event_at(ring, head++) = {op_size_extension << 45, bytes};
  event_at(ring, head) = {((address >> 3) & address_mask) | (op & 7) << 45 | (op >> 3) << 48,
                          number | static_cast<uint64_t>(stack) << 32};
  __atomic_store_n(&ring->head, head + 1, __ATOMIC_RELEASE);
}

// pre: enter() returned true.
[[gnu::noinline]] inline void record_mapped(RingHeader* ring, uint32_t function, Frame frame, uint64_t address,
                                            uint64_t bytes) {
  begin_recording(ring, frame);
  uint32_t stack = capture_stack(ring, function, frame);
  commit_mapping(ring, op_mapped, address, bytes, mapping_number(), stack);
  end_recording(ring, frame);
}

[[gnu::noinline]] inline void record_unmapped(RingHeader* ring, uint32_t function, Frame frame, uint64_t address,
                                              uint64_t bytes, uint32_t number) {
  begin_recording(ring, frame);
  uint32_t stack = gate().flags & flag_release_stacks ? capture_stack(ring, function, frame, true) : 0;
  commit_mapping(ring, op_unmapped, address, bytes, number, stack);
  end_recording(ring, frame);
}

[[gnu::noinline]] inline void record_discarded(RingHeader* ring, Frame frame, uint64_t address, uint64_t bytes) {
  begin_recording(ring, frame);
  commit_mapping(ring, op_discarded, address, bytes, mapping_number(), 0);
  end_recording(ring, frame);
}

inline bool has_failed(const void* result) { return result == reinterpret_cast<void*>(-1l); }

// Returns the number of bytes that mmap(2) maps for a length: whole pages, which for MAP_HUGETLB have the size in the
// flags. The default is 2 MiB on x86-64 (include/uapi/asm-generic/hugetlb_encode.h).
inline uint64_t mapped_bytes(uint64_t bytes, int flags) {
  constexpr int hugetlb = 0x40000, shift_at = 26, shift_mask = 63;
  if (!(flags & hugetlb)) return up_to_page(bytes);
  int shift = flags >> shift_at & shift_mask;
  uint64_t page = 1ull << (shift ? shift : 21);
  return (bytes + page - 1) & ~(page - 1);
}

// Returns the size of a shared memory segment in bytes; 0 if the kernel does not report it, or if the system call must
// not be made. struct shmid64_ds has shm_segsz after an ipc64_perm of 48 bytes (include/uapi/asm-generic/shmbuf.h).
inline uint64_t segment_bytes(int id) {
  if (!may_call_kernel()) return 0;
  constexpr int ipc_stat = 2;
  uint64_t status[32] = {};
  long result = sys::call(sys::nr_shmctl, id, ipc_stat, reinterpret_cast<long>(status));
  return result == 0 ? status[6] : 0;
}

// Records a change of the program break, in whole pages.
inline void record_break(RingHeader* ring, uint32_t function, Frame frame, uint64_t before, uint64_t after,
                         uint32_t number) {
  before = up_to_page(before);
  after = up_to_page(after);
  if (after > before) record_mapped(ring, function, frame, before, after - before);
  if (after < before) record_unmapped(ring, function, frame, after, before - after, number);
}

#define MEMHOOK_WRAPPER             \
  template <uint32_t F, uint32_t V> \
  [[gnu::noinline]] static

struct MappingWrappers {
  MEMHOOK_WRAPPER void* Mmap(void* hint, uint64_t bytes, int protection, int flags, int file, int64_t offset) {
    Frame frame = own_frame();
    RingHeader* ring = begin_call(frame);
    if (!ring) return original<void*>(F, V, hint, bytes, protection, flags, file, offset);
    constexpr int fixed = 0x10;
    if (flags & fixed) next_mapping_number();  // it may replace other mappings
    void* at = original<void*>(F, V, hint, bytes, protection, flags, file, offset);
    if (!has_failed(at)) record_mapped(ring, F, frame, reinterpret_cast<uint64_t>(at), mapped_bytes(bytes, flags));
    leave(ring);
    return at;
  }

  // The last argument is variadic in C, which does not change how an address is passed.
  MEMHOOK_WRAPPER void* Mremap(void* old, uint64_t old_bytes, uint64_t bytes, int flags, void* wanted) {
    Frame frame = own_frame();
    RingHeader* ring = begin_call(frame);
    if (!ring) return original<void*>(F, V, old, old_bytes, bytes, flags, wanted);
    constexpr int dont_unmap = 4;
    uint32_t number = next_mapping_number();
    void* at = original<void*>(F, V, old, old_bytes, bytes, flags, wanted);
    if (!has_failed(at)) {
      // An old length of 0 creates a second mapping of shared memory.
      if (!(flags & dont_unmap) && old_bytes != 0)
        record_unmapped(ring, F, frame, reinterpret_cast<uint64_t>(old), up_to_page(old_bytes), number);
      record_mapped(ring, F, frame, reinterpret_cast<uint64_t>(at), up_to_page(bytes));
    }
    leave(ring);
    return at;
  }

  MEMHOOK_WRAPPER int Munmap(void* at, uint64_t bytes) {
    Frame frame = own_frame();
    RingHeader* ring = begin_call(frame);
    if (!ring) return original<int>(F, V, at, bytes);
    uint32_t number = next_mapping_number();
    int result = original<int>(F, V, at, bytes);
    if (result == 0) record_unmapped(ring, F, frame, reinterpret_cast<uint64_t>(at), up_to_page(bytes), number);
    leave(ring);
    return result;
  }

  MEMHOOK_WRAPPER int Brk(void* end) {
    Frame frame = own_frame();
    RingHeader* ring = begin_call(frame);
    if (!ring) return original<int>(F, V, end);
    // If the hook must not query the kernel, the effect of the call is unknown.
    auto before = may_call_kernel() ? static_cast<uint64_t>(sys::call(sys::nr_brk, 0)) : 0;
    uint32_t number = next_mapping_number();
    int result = original<int>(F, V, end);
    if (result == 0 && before != 0) record_break(ring, F, frame, before, reinterpret_cast<uint64_t>(end), number);
    leave(ring);
    return result;
  }

  MEMHOOK_WRAPPER void* Sbrk(int64_t bytes) {
    Frame frame = own_frame();
    RingHeader* ring = begin_call(frame);
    if (!ring) return original<void*>(F, V, bytes);
    uint32_t number = next_mapping_number();
    void* before = original<void*>(F, V, bytes);
    if (!has_failed(before) && bytes != 0) {
      auto old_end = reinterpret_cast<uint64_t>(before);
      record_break(ring, F, frame, old_end, old_end + static_cast<uint64_t>(bytes), number);
    }
    leave(ring);
    return before;
  }

  MEMHOOK_WRAPPER int Madvise(void* at, uint64_t bytes, int advice) {
    Frame frame = own_frame();
    constexpr int dont_need = 4, free = 8;
    RingHeader* ring = advice == dont_need || advice == free ? begin_call(frame) : nullptr;
    if (!ring) return original<int>(F, V, at, bytes, advice);
    int result = original<int>(F, V, at, bytes, advice);
    if (result == 0) record_discarded(ring, frame, reinterpret_cast<uint64_t>(at), up_to_page(bytes));
    leave(ring);
    return result;
  }

  MEMHOOK_WRAPPER void* Shmat(int id, const void* wanted, int flags) {
    Frame frame = own_frame();
    RingHeader* ring = begin_call(frame);
    if (!ring) return original<void*>(F, V, id, wanted, flags);
    constexpr int remap = 0x4000;
    if (flags & remap) next_mapping_number();
    void* at = original<void*>(F, V, id, wanted, flags);
    uint64_t bytes = has_failed(at) ? 0 : up_to_page(segment_bytes(id));
    if (bytes != 0) record_mapped(ring, F, frame, reinterpret_cast<uint64_t>(at), bytes);
    leave(ring);
    return at;
  }

  MEMHOOK_WRAPPER int Shmdt(const void* at) {
    Frame frame = own_frame();
    RingHeader* ring = begin_call(frame);
    if (!ring) return original<int>(F, V, at);
    uint32_t number = next_mapping_number();
    int result = original<int>(F, V, at);
    if (result == 0) record_unmapped(ring, F, frame, reinterpret_cast<uint64_t>(at), 0, number);
    leave(ring);
    return result;
  }
};

#undef MEMHOOK_WRAPPER

}  // namespace memhook
