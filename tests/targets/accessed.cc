// Blocks with known reads and writes, with one function for each pattern. The program is compiled
// with access callbacks and linked with the access runtime.
#include <chrono>
#include <thread>

#include "target.hpp"

using namespace target;

// Hides the contents of a block from the compiler, so that it omits no read.
static void write_bytes(void* block, size_t from, size_t to) {
  auto* bytes = static_cast<volatile char*>(block);
  for (size_t i = from; i < to; i++) bytes[i] = static_cast<char>(i);
}
static long read_bytes(const void* block, size_t from, size_t to) {
  auto* bytes = static_cast<const volatile char*>(block);
  long sum = 0;
  for (size_t i = from; i < to; i++) sum += bytes[i];
  return sum;
}

// Uses all of 100 bytes: usage 1.
[[gnu::noinline]] static void whole() {
  for (int i = 0; i < 10; i++) {
    void* block = malloc(100);
    keep(block);
    write_bytes(block, 0, 100);
    read_bytes(block, 0, 100);
    free(block);
  }
}

// Uses bytes 8 to 40 of 128: usage .25.
[[gnu::noinline]] static void part() {
  for (int i = 0; i < 20; i++) {
    void* block = malloc(128);
    keep(block);
    write_bytes(block, 16, 40);
    read_bytes(block, 8, 9);
    free(block);
  }
}

// Only writes: usage 0.
[[gnu::noinline]] static void unread() {
  void* block = malloc(4096);
  keep(block);
  write_bytes(block, 0, 4096);
  free(block);
}

// Only reads: usage 0.
[[gnu::noinline]] static void unwritten() {
  void* block = calloc(100, 10);
  keep(block);
  read_bytes(block, 0, 1000);
  free(block);
}

// Neither reads nor writes.
[[gnu::noinline]] static void untouched() {
  for (int i = 0; i < 5; i++) {
    void* block = malloc(3000);
    keep(block);
    free(block);
  }
}

// Uses half of a block of several pages, which is live at the end.
[[gnu::noinline]] static void live() {
  void* block = malloc(20000);
  keep(block);
  write_bytes(block, 0, 10000);
  read_bytes(block, 0, 1);
}

// Uses a block for its whole life except for two pauses: useful lifetime about a third.
[[gnu::noinline]] static void pausing() {
  auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  void* block = malloc(64);
  keep(block);
  pause();
  write_bytes(block, 0, 64);
  pause();
  read_bytes(block, 0, 64);
  pause();
  free(block);
}

static void all() {
  whole();
  part();
  unread();
  unwritten();
  untouched();
  live();
  pausing();
  done();
}

int main() {
  ready();
  all();
#ifdef TWICE
  all();
#endif
}
