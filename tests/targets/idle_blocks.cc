// Blocks that two threads touch completely and constantly, and blocks that are not touched after
// their creation.
#include <pthread.h>
#include <time.h>

#include <atomic>

#include "target.hpp"

using namespace target;

static const int BUSY = 10, IDLE = 6;
static const size_t BUSY_BYTES = 400, IDLE_BYTES = 1000;

static unsigned char* busy[BUSY];
static unsigned char* idle[IDLE];
static std::atomic<bool> stop;

[[gnu::noinline]] static unsigned char* busy_block() {
  auto* block = static_cast<unsigned char*>(malloc(BUSY_BYTES));
  memset(block, 1, BUSY_BYTES);
  return block;
}

[[gnu::noinline]] static unsigned char* idle_block() {
  auto* block = static_cast<unsigned char*>(malloc(IDLE_BYTES));
  memset(block, 2, IDLE_BYTES);
  return block;
}

// One thread writes the even blocks, and the other thread reads the odd blocks.
static void* touch(void* first) {
  const bool writes = first == nullptr;
  unsigned long sum = 0;
  while (!stop) {
    for (int i = writes ? 0 : 1; i < BUSY; i += 2) {
      if (writes) memset(busy[i], 3, BUSY_BYTES);
      for (size_t at = 0; !writes && at < BUSY_BYTES; at++) sum += static_cast<volatile unsigned char*>(busy[i])[at];
    }
    timespec pause = {0, 500000};
    nanosleep(&pause, nullptr);
  }
  keep(&sum);
  return nullptr;
}

int main() {
  ready();
  for (auto*& block : busy) block = busy_block();
  for (auto*& block : idle) block = idle_block();
  pthread_t threads[2];
  for (long i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], nullptr, touch, reinterpret_cast<void*>(i)) == 0);
  done();
  stop = true;
  for (pthread_t thread : threads) pthread_join(thread, nullptr);
  for (unsigned char* block : idle) CHECK(block[0] == 2 && block[IDLE_BYTES - 1] == 2);
}
