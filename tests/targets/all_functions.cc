// Calls every hooked allocator function of libc and libstdc++, with separate planted blocks for
// each function, and checks that the wrappers preserve their behaviour.
#include <malloc.h>

#include <cstdint>
#include <new>

#include "target.hpp"

using namespace target;

// The functions are called through volatile pointers, because the compiler knows malloc and would
// optimize calls away.
static size_t volatile huge = SIZE_MAX / 2;

template <typename F>
[[gnu::always_inline]] inline void plant(int count, F allocate) {
  for (int i = 0; i < count; i++) {
    void* block = allocate();
    CHECK(block != nullptr);
    keep(block);
  }
}

#define PLANT(name, count, ...) \
  [[gnu::noinline]] static void name() { plant(count, [] { return static_cast<void*>(__VA_ARGS__); }); }

PLANT(plant_malloc, 3, malloc(101))
PLANT(plant_calloc, 4, calloc(7, 15))
PLANT(plant_realloc, 5, realloc(malloc(10), 1001))
PLANT(plant_reallocarray, 6, reallocarray(nullptr, 11, 13))
PLANT(plant_memalign, 7, memalign(64, 107))
PLANT(plant_aligned_alloc, 8, aligned_alloc(64, 128))
PLANT(plant_valloc, 2, valloc(109))
PLANT(plant_pvalloc, 2, pvalloc(110))
PLANT(plant_new, 9, ::operator new(111))
PLANT(plant_new_array, 10, ::operator new[](112))
PLANT(plant_new_nothrow, 11, ::operator new(113, std::nothrow))
PLANT(plant_new_array_nothrow, 12, ::operator new[](114, std::nothrow))
PLANT(plant_new_aligned, 13, ::operator new(115, std::align_val_t(128)))
PLANT(plant_new_array_aligned, 14, ::operator new[](116, std::align_val_t(128)))
PLANT(plant_new_aligned_nothrow, 15, ::operator new(117, std::align_val_t(128), std::nothrow))
PLANT(plant_new_array_aligned_nothrow, 16,
      ::operator new[](118, std::align_val_t(128), std::nothrow))

[[gnu::noinline]] static void plant_posix_memalign() {
  for (int i = 0; i < 17; i++) {
    void* block = nullptr;
    CHECK(posix_memalign(&block, 256, 119) == 0 && reinterpret_cast<uintptr_t>(block) % 256 == 0);
    keep(block);
  }
}

[[gnu::noinline]] static void plant_zero() {
  void* block = malloc(0);
  CHECK(block != nullptr);
  keep(block);
}

static void balanced() {
  std::align_val_t align{64};
  ::operator delete(::operator new(21));
  ::operator delete(::operator new(22), size_t{22});
  ::operator delete(::operator new(23, std::nothrow), std::nothrow);
  ::operator delete[](::operator new[](24));
  ::operator delete[](::operator new[](25), size_t{25});
  ::operator delete[](::operator new[](26, std::nothrow), std::nothrow);
  ::operator delete(::operator new(27, align), align);
  ::operator delete(::operator new(28, align), size_t{28}, align);
  ::operator delete(::operator new(29, align, std::nothrow), align, std::nothrow);
  ::operator delete[](::operator new[](30, align), align);
  ::operator delete[](::operator new[](31, align), size_t{31}, align);
  ::operator delete[](::operator new[](32, align, std::nothrow), align, std::nothrow);
  free(malloc(33));
  free(realloc(realloc(nullptr, 34), 35));
  free(reallocarray(malloc(36), 5, 8));
  free(nullptr);
  ::operator delete(nullptr);
  void* gone = malloc(37);
  keep(gone);
  CHECK(realloc(gone, 0) == nullptr);  // glibc releases and returns null
}

static bool is_aligned(void* block, uintptr_t to) {
  return block != nullptr && reinterpret_cast<uintptr_t>(block) % to == 0;
}

static void alignments() {
  for (size_t to = 16; to <= 65536; to *= 4) {
    std::align_val_t align{to};
    void* blocks[] = {memalign(to, 5), aligned_alloc(to, to * 2)};
    for (void* block : blocks) {
      CHECK(is_aligned(block, to));
      free(block);
    }
    void* one = ::operator new(6, align);
    void* many = ::operator new[](7, align, std::nothrow);
    CHECK(is_aligned(one, to) && is_aligned(many, to));
    ::operator delete(one, align);
    ::operator delete[](many, align, std::nothrow);
  }
  size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* paged = valloc(8);
  void* whole = pvalloc(9);
  CHECK(is_aligned(paged, page) && is_aligned(whole, page));
  memset(whole, 1, page);  // pvalloc rounds up
  free(paged);
  free(whole);
}

static void zero_sizes() {
  size_t volatile zero = 0;
  void* blocks[] = {calloc(zero, 5), calloc(5, zero), realloc(nullptr, zero),
                    reallocarray(nullptr, zero, 8), memalign(64, zero)};
  for (void* block : blocks) {
    CHECK(block != nullptr);  // glibc gives a block of its smallest size
    free(block);
  }
  void* one = ::operator new(zero);
  void* many = ::operator new[](zero);
  CHECK(one != nullptr && many != nullptr && one != many);
  ::operator delete(one);
  ::operator delete[](many);
  unsigned char* cleared = static_cast<unsigned char*>(calloc(100, 50));
  for (int i = 0; i < 5000; i++) CHECK(cleared[i] == 0);
  free(cleared);
}

static void failures() {
  errno = 0;
  CHECK(malloc(huge) == nullptr && errno == ENOMEM);
  errno = 0;
  CHECK(calloc(huge, huge) == nullptr && errno == ENOMEM);
  errno = 0;
  CHECK(reallocarray(nullptr, huge, huge) == nullptr && errno == ENOMEM);
  char* block = static_cast<char*>(malloc(64));
  memset(block, 0x5a, 64);
  errno = 0;
  CHECK(realloc(block, huge) == nullptr && errno == ENOMEM);
  for (int i = 0; i < 64; i++) CHECK(block[i] == 0x5a);  // the old block is unchanged
  free(block);
  void* untouched = &block;
  CHECK(posix_memalign(&untouched, 3, 10) == EINVAL && untouched == &block);
  CHECK(::operator new(huge, std::nothrow) == nullptr);
  errno = 4711;
  free(malloc(50));
  CHECK(errno == 4711);
}

int main() {
  ready();
  plant_malloc();
  plant_calloc();
  plant_realloc();
  plant_reallocarray();
  plant_memalign();
  plant_aligned_alloc();
  plant_valloc();
  plant_pvalloc();
  plant_new();
  plant_new_array();
  plant_new_nothrow();
  plant_new_array_nothrow();
  plant_new_aligned();
  plant_new_array_aligned();
  plant_new_aligned_nothrow();
  plant_new_array_aligned_nothrow();
  plant_posix_memalign();
  plant_zero();
  for (int i = 0; i < 100; i++) balanced();
  alignments();
  zero_sizes();
  failures();
  done();
}
