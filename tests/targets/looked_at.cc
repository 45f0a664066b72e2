// Blocks with known accesses, one function for each pattern. The first argument is the duration in
// milliseconds. Every block lives for some milliseconds.
#include <atomic>
#include <chrono>
#include <thread>

#include "target.hpp"

using namespace target;

static void touch(void* block, size_t from, size_t to) {
  auto* bytes = static_cast<volatile char*>(block);
  for (size_t i = from; i < to; i++) bytes[i] = static_cast<char>(bytes[i] + 1);
}

// Never touches every second block.
[[gnu::noinline]] static void* half(int i) {
  void* block = malloc(32);
  keep(block);
  if (i % 2) touch(block, 0, 32);
  return block;
}
// Touches 16 of 64 bytes.
[[gnu::noinline]] static void* beginning() {
  void* block = malloc(64);
  keep(block);
  touch(block, 0, 16);
  return block;
}
// Touches a block only at the start of its life.
[[gnu::noinline]] static void* early() {
  void* block = malloc(24);
  keep(block);
  touch(block, 0, 24);
  return block;
}
// Touches a block throughout its life.
[[gnu::noinline]] static void* throughout() {
  void* block = malloc(16);
  keep(block);
  touch(block, 0, 16);
  return block;
}
// Touches all but the last byte, which shares its word with six others.
[[gnu::noinline]] static void* tail() {
  void* block = malloc(31);
  keep(block);
  touch(block, 0, 30);
  return block;
}
// Touches 17 of 24 bytes: one byte of the last word.
[[gnu::noinline]] static void* odd() {
  void* block = malloc(24);
  keep(block);
  touch(block, 0, 17);
  return block;
}
// Touches 31 of 61 bytes.
[[gnu::noinline]] static void* quarters() {
  void* block = malloc(61);
  keep(block);
  touch(block, 0, 31);
  return block;
}
[[gnu::noinline]] static void* untouched() {
  void* block = malloc(40);
  keep(block);
  return block;
}

static void rest() { std::this_thread::sleep_for(std::chrono::milliseconds(3)); }

int main(int, char** argv) {
  ready();
  auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(atoi(argv[1]));
  for (int i = 0; std::chrono::steady_clock::now() < end; i++) {
    void* halves[6];
    for (int n = 0; n < 6; n++) halves[n] = half(i + n);
    void* others[] = {beginning(), early(), throughout(), untouched(), tail(), odd(), quarters()};
    rest();
    for (int n = 0; n < 6; n++)
      if ((i + n) % 2) touch(halves[n], 0, 32);
    rest();
    touch(others[0], 0, 16);
    touch(others[2], 0, 16);
    for (void* block : halves) free(block);
    for (void* block : others) free(block);
  }
  done();
}
