// Threads that start and exit one after another. Each keeps a block of 100 bytes and up to 49 more
// blocks. Argument: number of threads.
#include <pthread.h>

#include "target.hpp"

using namespace target;

static void* one(void* number) {
  keep(malloc(100 + reinterpret_cast<size_t>(number) % 50));
  return nullptr;
}

int main(int, char** argv) {
  int threads = atoi(argv[1]);
  ready();
  for (int i = 0; i < threads; i++) {
    pthread_t thread;
    CHECK(pthread_create(&thread, nullptr, one, reinterpret_cast<void*>(static_cast<size_t>(i))) == 0);
    CHECK(pthread_join(thread, nullptr) == 0);
  }
  done();
}
