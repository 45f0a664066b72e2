// Three threads with descriptor tables of their own (unshare(2), CLONE_FILES) allocate, while the
// initial thread waits for them inside the C library, where no library may be loaded.
#include <fcntl.h>
#include <sched.h>

#include <atomic>
#include <thread>
#include <vector>

#include "usable.hpp"

using namespace target;

static std::atomic<bool> stop{false};

static int lowest_free() {
  int file = open("/dev/null", O_RDONLY);
  CHECK(file >= 0 && close(file) == 0);
  return file;
}

static void work() {
  CHECK(unshare(CLONE_FILES) == 0);
  std::vector<int> files;
  for (int i = 0; i < 8; i++) files.push_back(open("/dev/null", O_RDONLY));
  int free_before = lowest_free();
  while (!stop) {
    for (size_t size = 1; size < 200; size++) {
      void* block = malloc(size);
      keep(block);
      free(block);
    }
    usleep(500);
  }
  for (int file : files) CHECK(fcntl(file, F_GETFD) != -1);
  CHECK(lowest_free() == free_before);
}

int main() {
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; i++) threads.emplace_back(work);
  std::thread reader([] {
    CHECK(unshare(CLONE_FILES) == 0);
    serve();
    stop = true;
  });
  say("ready");
  for (std::thread& thread : threads) thread.join();
  reader.join();
}
