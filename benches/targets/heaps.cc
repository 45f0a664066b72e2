// Heaps of different shapes, in which a tool searches for pointers.
//
//   heaps nodes|map|strings|buffers MILLIONS
//
// nodes: one list of 32-byte nodes, linked in random order, so that each block is a cache miss and
// its address is only known after the previous block has been read. map: a std::map from numbers to
// blocks. strings: one array of pointers to blocks of text. buffers: blocks of 64 KB without
// pointers, thousands instead of millions. Protocol: prints "ready" and exits at the end of its
// input.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

struct Node {
  Node* next;
  uint64_t value;
};

static Node* volatile list;
static std::map<uint64_t, char*>* volatile map;
static std::vector<char*>* volatile blocks;

static uint64_t state = 88172645463325252ull;
static uint64_t next_random() {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

static char* text(size_t bytes) {
  auto* p = static_cast<char*>(malloc(bytes));
  for (size_t i = 0; i < bytes; i++) p[i] = static_cast<char>('a' + (i * 7 + bytes) % 26);
  return p;
}

int main(int argc, char** argv) {
  if (argc < 3) return 1;
  size_t count = strtoull(argv[2], nullptr, 10) * 1000000;
  switch (argv[1][0]) {
    case 'n': {
      std::vector<Node*> order(count);
      for (auto& node : order) node = new Node{nullptr, next_random()};
      for (size_t i = count - 1; i > 0; i--) std::swap(order[i], order[next_random() % (i + 1)]);
      for (size_t i = 0; i + 1 < count; i++) order[i]->next = order[i + 1];
      list = order[0];
      break;
    }
    case 'm': {
      map = new std::map<uint64_t, char*>;
      for (size_t i = 0; i < count; i++) (*map)[next_random()] = text(16 + next_random() % 64);
      break;
    }
    case 's':
      blocks = new std::vector<char*>(count);
      for (auto& block : *blocks) block = text(16 + next_random() % 100);
      break;
    default:
      blocks = new std::vector<char*>(count / 1000);
      for (auto& block : *blocks) block = text(64 * 1024);
  }
  if (write(1, "ready\n", 6) != 6) return 1;
  char c;
  while (read(0, &c, 1) == 1) continue;
  _exit(0);
}
