// Blocks of random sizes up to 516 bytes, released and allocated in 100 slots of each thread. Argument: THREADS.
#include "measured.hpp"

using namespace measured;

static Cost exchange(int thread, double milliseconds) {
  static thread_local void* slots[100];
  static thread_local Random random{0x9e37'79b9'7f4a'7c15 + static_cast<uint64_t>(thread)};
  constexpr int block = 2000;
  return repeat(milliseconds, block, [] {
    for (int i = 0; i < block; i++) {
      uint64_t number = random.next();
      void*& slot = slots[number % 100];
      free(slot);
      slot = malloc((number >> 32) % 517);
      keep(slot);
    }
  });
}

int main(int, char** argv) { return serve(atoi(argv[1]), exchange); }
