// N blocks of mixed sizes, all reachable from one root, as a random tree with extra edges. If K >
// 0, every K-th block is unlinked before "ready". Used to measure the speed of a scan. With a third
// argument W, one thread keeps writing W MB/s into the blocks.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

struct Node {
  Node* left;
  Node* right;
  Node* extra;
  uint64_t payload[];
};

static Node** roots;

int main(int argc, char** argv) {
  long n = argc > 1 ? atol(argv[1]) : 1000000;
  long bytes = argc > 2 ? atol(argv[2]) : 64;
  long megabytes_a_second = argc > 3 ? atol(argv[3]) : 0;
  uint64_t seed = 88172645463325252ull;
  auto next = [&] {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
  };
  roots = static_cast<Node**>(malloc(n * sizeof(Node*)));
  for (long i = 0; i < n; i++) {
    size_t size = sizeof(Node) + sizeof(uint64_t) + next() % (2 * bytes);
    roots[i] = static_cast<Node*>(malloc(size));
    memset(roots[i], 0x5a, size);
    roots[i]->left = roots[i]->right = roots[i]->extra = nullptr;
  }
  for (long i = 1; i < n; i++) {
    long parent = (i - 1) / 2;
    (i % 2 ? roots[parent]->left : roots[parent]->right) = roots[i];
    roots[i]->extra = roots[next() % n];
  }
  if (write(1, "ready\n", 6) != 6) return 1;
  volatile bool stop = false;
  std::thread writer([&] {
    uint64_t at = 1;
    while (!stop && megabytes_a_second > 0) {
      // Dirties 256 pages of 4 KB, or 1 MB, per step.
      for (int i = 0; i < 256; i++) roots[(at = at * 6364136223846793005ull + 1) % n]->payload[0]++;
      usleep(1000000 / megabytes_a_second);
    }
  });
  char c;
  while (read(0, &c, 1) == 1)
    if (write(1, "done\n", 5) != 5) return 1;
  stop = true;
  writer.join();
  return 0;
}
