// Several threads fork children constantly, while other threads allocate. A child allocates, checks
// the blocks, lives for up to half a second and exits; the program checks its status. Ends when a
// byte arrives.
#include <sys/wait.h>

#include <atomic>
#include <thread>
#include <vector>

#include "target.hpp"

using namespace target;

static std::atomic<bool> stop{false};

static void work(unsigned rounds, unsigned char mark) {
  unsigned char* blocks[64];
  for (unsigned round = 0; round < rounds; round++) {
    for (unsigned i = 0; i < 64; i++) {
      size_t size = 16 + i * 37 % 900;
      blocks[i] = static_cast<unsigned char*>(malloc(size));
      CHECK(blocks[i] != nullptr);
      memset(blocks[i], mark, size);
    }
    for (unsigned i = 0; i < 64; i++) {
      size_t size = 16 + i * 37 % 900;
      for (size_t at = 0; at < size; at++) CHECK(blocks[i][at] == mark);
      free(blocks[i]);
    }
  }
}

static void fork_children(unsigned char mark) {
  for (unsigned n = 0; !stop; n++) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      for (unsigned i = 0; i < n * 97 % 400; i++) {
        work(1, mark);
        usleep(1000);
      }
      _exit(0);
    }
    int status = 0;
    pid_t ended;
    do {
      ended = waitpid(child, &status, 0);
    } while (ended < 0 && errno == EINTR);
    CHECK(ended == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

int main() {
  std::vector<std::thread> threads;
  for (unsigned char i = 0; i < 3; i++) threads.emplace_back(fork_children, i);
  for (unsigned char i = 3; i < 5; i++)
    threads.emplace_back([i] {
      while (!stop) {
        work(10, i);
        usleep(500);
      }
    });
  ready();
  stop = true;
  for (auto& thread : threads) thread.join();
  done();
}
