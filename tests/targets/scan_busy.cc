// Threads that constantly allocate, check and release, two threads that sleep in epoll_wait and
// nanosleep, and a list that must stay reachable. Exits with status 3 if epoll_wait was
// interrupted, or 2 if a block was damaged.
#include <sys/epoll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

static std::atomic<bool> stop;
static std::atomic<int> interrupted, damaged;
static std::atomic<long> rounds;

struct Node {
  Node* next;
  long value;
};

static void churn(unsigned seed) {
  std::vector<unsigned char*> blocks(500);
  std::vector<size_t> sizes(500);
  Node* list = nullptr;
  for (int i = 0; i < 1000; i++) list = new Node{list, i};
  while (!stop) {
    for (int k = 0; k < 1000; k++) {
      seed = seed * 1664525 + 1013904223;
      unsigned i = seed >> 8 & 0xff;
      if (blocks[i]) {
        if (blocks[i][0] != i || blocks[i][sizes[i] - 1] != i) damaged++;
        free(blocks[i]);
      }
      sizes[i] = 1 + (seed >> 4) % (seed % 50 == 0 ? 300000 : 2000);
      blocks[i] = static_cast<unsigned char*>(malloc(sizes[i]));
      blocks[i][0] = blocks[i][sizes[i] - 1] = static_cast<unsigned char>(i);
    }
    rounds++;
    long sum = 0;
    for (Node* n = list; n; n = n->next) sum += n->value;
    if (sum != 499500) damaged++;
  }
}

int main(int argc, char** argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 4;
  std::vector<std::thread> all;
  for (int i = 0; i < threads; i++) all.emplace_back(churn, i + 1);
  int ends[2];
  if (pipe(ends) != 0) return 1;
  std::thread waiter([&] {
    int poll = epoll_create1(0);
    epoll_event event{};
    event.events = EPOLLIN;
    epoll_ctl(poll, EPOLL_CTL_ADD, ends[0], &event);
    while (epoll_wait(poll, &event, 1, -1) != 1) interrupted += errno == EINTR;
  });
  std::thread sleeper([] {
    while (!stop) usleep(1000);
  });
  if (write(1, "ready\n", 6) != 6) return 1;
  char c;
  while (read(0, &c, 1) == 1)
    if (write(1, "done\n", 5) != 5) return 1;
  stop = true;
  if (write(ends[1], "x", 1) != 1) return 1;
  waiter.join();
  sleeper.join();
  for (auto& t : all) t.join();
  return interrupted ? 3 : damaged ? 2 : 0;
}
