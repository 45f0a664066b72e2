// Rounds of threads. Each thread fills its cache of free blocks and exits, leaving one block
// behind.
#include <pthread.h>

#include "target.hpp"

static const int threads = 8, kept_of_each_size = 7;

static void* work(void*) {
  static const int sizes = 64;
  void* blocks[sizes * kept_of_each_size];
  for (int i = 0; i < sizes * kept_of_each_size; i++) {
    size_t size = static_cast<size_t>(24 + 16 * (i / kept_of_each_size));
    blocks[i] = malloc(size);
    CHECK(blocks[i]);
    memset(blocks[i], 1, size);
  }
  for (void* block : blocks) free(block);
  void* left = malloc(500);
  CHECK(left);
  memset(left, 1, 500);
  return left;
}

int main(int count, char** arguments) {
  int rounds = count > 1 ? atoi(arguments[1]) : 100;
  for (int round = 0; round < rounds; round++) {
    pthread_t running[threads];
    void* left;
    for (pthread_t& thread : running) CHECK(pthread_create(&thread, nullptr, work, nullptr) == 0);
    for (pthread_t& thread : running) CHECK(pthread_join(thread, &left) == 0);
    // The resident memory is measured at intervals.
    usleep(10'000);
  }
}
