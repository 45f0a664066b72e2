// Counters in separate blocks. Two of the counters are in one cache line, and different threads
// increment them. Prints "shared" with the addresses of these two.
//
// In addition, one thread increments two counters in one line, both threads increment a block alone
// in its lines, and one counter shares its line with a counter that is only read.
#include <pthread.h>
#include <stdint.h>
#include <time.h>

#include <atomic>

#include "target.hpp"

using namespace target;

static const uintptr_t LINE = 64;
static const size_t BYTES = 16;

using Counter = std::atomic<long>;

struct Pair {
  Counter* one;
  Counter* other;
};

static Pair shared, of_one_thread, read_and_written;
static Counter* of_both;
static std::atomic<bool> stop;

static Counter* counter() { return new (malloc(BYTES)) Counter(0); }

// Returns two blocks in one line, with nothing else in this line. Releases all other blocks.
[[gnu::noinline]] static Pair neighbours() {
  void* unused[64];
  int count = 0;
  Pair found = {nullptr, nullptr};
  // This block is alone in its lines, so that no pair shares a line with another pair.
  keep(aligned_alloc(LINE, 4 * LINE));
  Counter* one = counter();
  while (found.one == nullptr) {
    CHECK(count < 64);
    Counter* other = counter();
    if (reinterpret_cast<uintptr_t>(one) / LINE == reinterpret_cast<uintptr_t>(other) / LINE) {
      found = {one, other};
    } else {
      unused[count++] = one;
      one = other;
    }
  }
  keep(aligned_alloc(LINE, 4 * LINE));
  while (count > 0) free(unused[--count]);
  return found;
}

static void pause_shortly() {
  timespec pause = {0, 200000};
  nanosleep(&pause, nullptr);
}

static void* first(void*) {
  while (!stop) {
    shared.one->fetch_add(1);
    of_one_thread.one->fetch_add(1);
    of_one_thread.other->fetch_add(1);
    read_and_written.one->fetch_add(1);
    of_both->fetch_add(1);
    pause_shortly();
  }
  return nullptr;
}

static void* second(void*) {
  while (!stop) {
    shared.other->fetch_add(1);
    keep(reinterpret_cast<void*>(read_and_written.other->load()));
    of_both->fetch_add(1);
    pause_shortly();
  }
  return nullptr;
}

int main() {
  ready();
  shared = neighbours();
  of_one_thread = neighbours();
  read_and_written = neighbours();
  of_both = new (aligned_alloc(LINE, 4 * LINE)) Counter(0);
  char line[96];
  snprintf(line, sizeof line, "shared %p %p", static_cast<void*>(shared.one), static_cast<void*>(shared.other));
  say(line);
  pthread_t threads[2];
  CHECK(pthread_create(&threads[0], nullptr, first, nullptr) == 0);
  CHECK(pthread_create(&threads[1], nullptr, second, nullptr) == 0);
  done();
  stop = true;
  for (pthread_t thread : threads) pthread_join(thread, nullptr);
  CHECK(*shared.one > 0 && *shared.other > 0);
}
