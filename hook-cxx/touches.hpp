// Functions of the C library that read or write bytes for the program, counted like the program's own accesses. Their
// slots are exchanged only if the program reports its accesses.
//
// For some functions (read, strlen), the number of bytes is known only after the call. Their bytes are counted after
// the call, from a stack frame of ours. For all others, the bytes are counted before the call, and the wrapper jumps to
// the function, so that none of our frames is on the stack while it waits. Pointers passed by the program are never
// dereferenced, because the kernel returns EFAULT where we would crash. No wrapper sets a mark or takes a lock, so a
// signal handler may call a wrapper at any moment, and a thread that is cancelled inside one leaves nothing behind. The
// caller sees the original's errno, because none of our code changes it.
#pragma once
#include "calls.hpp"

namespace memhook {

// Counts bytes that the program reads or writes through a function of the C library.
[[gnu::always_inline]] inline void note_touch(uint64_t address, uint64_t bytes, bool is_write) {
  if (bytes == 0 || epoch_now() == 0 || !(gate().flags & flag_accesses)) return;
  // A call that will fail may name any length.
  note_access(address, bytes < most_accessed_bytes ? bytes : most_accessed_bytes, is_write);
}

#define MEMHOOK_WRAPPER             \
  template <uint32_t F, uint32_t V> \
  [[gnu::noinline]] static

struct TouchWrappers {
  // Called by the access runtime for each read and write. `what`: bytes << 1, and 1 if it is a write.
  MEMHOOK_WRAPPER void Access(uint64_t address, uint64_t what) {
    if (epoch_now() != 0 && gate().flags & flag_accesses) note_access(address, what >> 1, what & 1);
  }
  // memcpy and similar functions. Only the checked variants take the fourth parameter; the other functions ignore its
  // register.
  MEMHOOK_WRAPPER uint64_t CopyBytes(uint64_t to, uint64_t from, uint64_t bytes, uint64_t room) {
    note_touch(from, bytes, false);
    note_touch(to, bytes, true);
    return original<uint64_t>(F, V, to, from, bytes, room);
  }
  MEMHOOK_WRAPPER uint64_t FillBytes(uint64_t to, uint64_t byte, uint64_t bytes, uint64_t room) {
    note_touch(to, bytes, true);
    return original<uint64_t>(F, V, to, byte, bytes, room);
  }
  MEMHOOK_WRAPPER uint64_t CompareBytes(uint64_t one, uint64_t other, uint64_t bytes) {
    note_touch(one, bytes, false);
    note_touch(other, bytes, false);
    return original<uint64_t>(F, V, one, other, bytes);
  }
  MEMHOOK_WRAPPER uint64_t StringLength(uint64_t text) {
    uint64_t length = original<uint64_t>(F, V, text);
    note_touch(text, length + 1, false);
    return length;
  }
  // read and similar functions have up to three more parameters. Their result may exceed the size of the buffer
  // (MSG_TRUNC of recv(2)).
  MEMHOOK_WRAPPER uint64_t ReadInto(uint64_t file, uint64_t to, uint64_t bytes, uint64_t x, uint64_t y, uint64_t z) {
    uint64_t result = original<uint64_t>(F, V, file, to, bytes, x, y, z);
    if (static_cast<int64_t>(result) > 0) note_touch(to, result < bytes ? result : bytes, true);
    return result;
  }
  MEMHOOK_WRAPPER uint64_t WriteFrom(uint64_t file, uint64_t from, uint64_t bytes, uint64_t x, uint64_t y, uint64_t z) {
    note_touch(from, bytes, false);
    return original<uint64_t>(F, V, file, from, bytes, x, y, z);
  }
  MEMHOOK_WRAPPER uint64_t ReadItems(uint64_t to, uint64_t size, uint64_t count, uint64_t stream) {
    uint64_t items = original<uint64_t>(F, V, to, size, count, stream);
    note_touch(to, product(size, items), true);
    return items;
  }
  MEMHOOK_WRAPPER uint64_t WriteItems(uint64_t from, uint64_t size, uint64_t count, uint64_t stream) {
    note_touch(from, product(size, count), false);
    return original<uint64_t>(F, V, from, size, count, stream);
  }
};

#undef MEMHOOK_WRAPPER

}  // namespace memhook
