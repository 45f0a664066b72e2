// A server after a burst. In each of several arenas, most blocks of many sizes have been released,
// but small live blocks of 72 bytes pin their pages. Arguments: the number of threads, and
// "trimmed" or "untrimmed". With a third argument, the program prints "ready" and waits before it
// begins, so that a trace covers all of it.
//
// Protocol: prints "ready" when all blocks are planted. At the first byte, it frees all pins, trims
// the heap and prints "freed". At the second byte, it exits.
#include <malloc.h>
#include <pthread.h>

#include <cstdint>
#include <vector>

#include "target.hpp"

namespace {

pthread_barrier_t planted;
std::vector<void*> pins[65];
std::vector<void*> live[65];

__attribute__((noinline)) void* pin() { return malloc(72); }

__attribute__((noinline)) void plant(intptr_t place) {
  unsigned random = static_cast<unsigned>(place) + 7;
  pins[place].reserve(1000);
  live[place].reserve(1000);
  std::vector<void*> burst;
  burst.reserve(40000);
  for (int i = 0; i < 40000; ++i) {
    // Not a size of a pin.
    random = random * 1103515245 + 12345;
    size_t size = 200 + (random >> 8) % 3000;
    void* block = malloc(size);
    CHECK(block);
    memset(block, 1, size);
    burst.push_back(block);
    if (i % 80 == 40) {
      memset(pins[place].emplace_back(pin()), 2, 72);
    }
    // Blocks that other code still uses, in a part of the arena.
    if (i % 80 == 60 && i > 30000) {
      memset(live[place].emplace_back(malloc(120)), 3, 120);
    }
  }
  for (void* block : burst) free(block);
}

void* work(void* argument) {
  plant(reinterpret_cast<intptr_t>(argument));
  pthread_barrier_wait(&planted);
  for (;;) pause();
}

}  // namespace

int main(int count, char** arguments) {
  CHECK(count == 3 || count == 4);
  if (count == 4) target::ready();
  intptr_t threads = atoi(arguments[1]);
  pthread_barrier_init(&planted, nullptr, static_cast<unsigned>(threads) + 1);
  for (intptr_t i = 1; i <= threads; ++i) {
    pthread_t thread;
    CHECK(pthread_create(&thread, nullptr, work, reinterpret_cast<void*>(i)) == 0);
  }
  plant(0);
  pthread_barrier_wait(&planted);
  if (strcmp(arguments[2], "trimmed") == 0) malloc_trim(0);
  target::ready();
  for (auto& of_thread : pins)
    for (void* block : of_thread) free(block);
  malloc_trim(0);
  target::say("freed");
  target::wait_for_byte();
  return 0;
}
