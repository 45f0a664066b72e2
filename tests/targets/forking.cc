// Forks without pause, while threads allocate, until its input ends. Each child works and checks
// itself.
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "target.hpp"

using namespace target;

static std::atomic<bool> stop{false};

static int hammer(int rounds) {
  int sum = 0;
  for (int i = 0; i < rounds; i++) {
    auto* block = static_cast<unsigned char*>(malloc(static_cast<size_t>(i % 500 + 1)));
    block[0] = static_cast<unsigned char>(i & 1);
    sum += block[0];
    free(block);
  }
  return sum;
}

int main() {
  std::thread worker([] {
    while (!stop) CHECK(hammer(1000) == 500);
  });
  std::thread reader([] {
    wait_for_byte();
    stop = true;
  });
  say("ready");
  while (!stop) {
    pid_t child = fork();
    if (child == 0) {
      for (int i = 0; i < 100; i++) keep(malloc(64));
      _exit(hammer(2000) == 1000 ? 0 : 1);
    }
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  worker.join();
  reader.join();
}
