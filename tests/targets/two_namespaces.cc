// A second C library in a separate namespace is bound immediately. The program's own calls are
// bound lazily, after the attach.
#include <dlfcn.h>

#include "target.hpp"

using namespace target;

[[gnu::noinline]] static void leak_realloc() {
  void* block = realloc(malloc(10), 811);
  CHECK(block);
  keep(block);
}

[[gnu::noinline]] static void leak_aligned() {
  void* block = nullptr;
  CHECK(posix_memalign(&block, 64, 812) == 0);
  keep(block);
  CHECK(posix_memalign(&block, 64, 812) == 0);
  // Only the library that allocated a block can release it.
  free(block);
}

// Repeated many times, because releasing blocks to the wrong allocator does not crash a program
// immediately.
[[gnu::noinline]] static void churn() {
  for (size_t i = 0; i < 2000; i++) {
    void* block = realloc(malloc(10 + i), 5000 + i * 7);
    CHECK(block);
    free(block);
  }
}

// Calls realloc through the C library's own slot.
[[gnu::noinline]] static void read_line() {
  char* line = nullptr;
  size_t room = 0;
  FILE* status = fopen("/proc/self/status", "r");
  CHECK(status);
  size_t lines = 0;
  while (getline(&line, &room, status) > 0) lines++;
  CHECK(lines > 3);
  free(line);
  fclose(status);
}

int main() {
  // Only this call is bound before the attach.
  keep(malloc(1));
  CHECK(dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW));
  ready();
  for (int i = 0; i < 5; i++) leak_realloc();
  for (int i = 0; i < 4; i++) leak_aligned();
  churn();
  read_line();
  done();
}
