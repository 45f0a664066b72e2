// libc's malloc and jemalloc in one process. Each block is returned to the allocator that allocated
// it.
#include <dlfcn.h>

#include "target.hpp"

using namespace target;

// Simulates a program that is linked to an allocator with different function names.
extern "C" void* mallocx(size_t size, int flags);
extern "C" void* rallocx(void* block, size_t size, int flags);
extern "C" size_t xallocx(void* block, size_t size, size_t extra, int flags);
extern "C" void dallocx(void* block, int flags);
extern "C" void sdallocx(void* block, size_t size, int flags);

[[gnu::noinline]] static void leak_mallocx() { keep(mallocx(801, 0)); }
[[gnu::noinline]] static void leak_rallocx() { keep(rallocx(mallocx(10, 0), 5000, 0)); }
[[gnu::noinline]] static void leak_malloc() { keep(malloc(802)); }

int main() {
  ready();
  for (int i = 0; i < 4; i++) leak_mallocx();
  for (int i = 0; i < 3; i++) leak_rallocx();
  for (int i = 0; i < 2; i++) leak_malloc();
  for (int i = 0; i < 1000; i++) {
    void* block = mallocx(static_cast<size_t>(100 + i), 0);
    CHECK(xallocx(block, static_cast<size_t>(100 + i), 50, 0) >= static_cast<size_t>(100 + i));
    dallocx(block, 0);
    sdallocx(mallocx(64, 0), 64, 0);
    free(malloc(65));
  }
  done();
}
