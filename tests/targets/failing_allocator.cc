// A library with an allocator that works for a few thousand calls and then crashes, waits forever
// (-DWAITS), or has no memory left (-DREFUSES).
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

namespace {

constexpr size_t room_bytes = size_t{1} << 30;
constexpr long good_calls = 5000;

alignas(16) char room[room_bytes];
size_t used;
long calls;

// The size precedes each block.
void* take(size_t size) {
  if (++calls > good_calls) {
#if defined WAITS
    for (;;) pause();
#elif defined REFUSES
    return nullptr;
#else
    __builtin_trap();
#endif
  }
  const size_t whole = (size + 31) & ~size_t{15};
  if (whole > room_bytes - used) return nullptr;
  char* block = room + used;
  used += whole;
  memcpy(block, &size, sizeof size);
  return block + 16;
}

}  // namespace

extern "C" {
void* malloc(size_t size) { return take(size); }
void free(void*) {}
void* calloc(size_t count, size_t size) { return take(count * size); }
void* memalign(size_t alignment, size_t size) {
  if (alignment < 16) alignment = 16;
  auto at = reinterpret_cast<uintptr_t>(take(size + alignment));
  return at == 0 ? nullptr : reinterpret_cast<void*>((at + alignment - 1) & -alignment);
}
void* realloc(void* old, size_t size) {
  void* block = take(size);
  if (block == nullptr || old == nullptr) return block;
  size_t old_size;
  memcpy(&old_size, static_cast<char*>(old) - 16, sizeof old_size);
  memcpy(block, old, old_size < size ? old_size : size);
  return block;
}
}
