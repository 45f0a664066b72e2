// Leaks of every size in a program with an allocator other than glibc's, and blocks that are
// reachable in every way.
#include <thread>
#include <vector>

#include "target.hpp"

using namespace target;

struct Node {
  Node* next;
  char data[40];
};

static Node* list;
static thread_local void* volatile kept_by_thread;

[[gnu::noinline]] static void leak_small() {
  for (int i = 0; i < 3; i++) keep(malloc(77));
}

[[gnu::noinline]] static void leak_large() {
  keep(malloc(50'000));
  keep(malloc(3'000'000));
}

[[gnu::noinline]] static void leak_new() { keep(new Node); }

[[gnu::noinline]] static void leak_list() {
  Node* first = nullptr;
  for (int i = 0; i < 100; i++) {
    auto* node = static_cast<Node*>(malloc(sizeof(Node)));
    node->next = first;
    first = node;
    keep(node);
  }
}

[[gnu::noinline]] static void leak_in_thread() { keep(malloc(333)); }

// Leaves stale addresses of leaked blocks in memory of the allocator.
[[gnu::noinline]] static void churn() {
  std::vector<void*> blocks;
  for (int i = 0; i < 5000; i++) blocks.push_back(malloc(16 + i % 500));
  for (size_t i = 0; i < blocks.size(); i += 2) {
    static_cast<void**>(blocks[i])[0] = blocks[(i + 7) % blocks.size()];
    free(blocks[i]);
    blocks[i] = nullptr;
  }
  for (void* block : blocks) free(block);
}

[[gnu::noinline]] static void overwrite_stack() {
  char bytes[16'384];
  memset(bytes, 0, sizeof bytes);
  keep(bytes);
}

int main(int count, char**) {
  for (int i = 0; i < 1000; i++) {
    auto* node = static_cast<Node*>(malloc(sizeof(Node)));
    node->next = list;
    list = node;
  }
  for (int i = 0; i < 500; i++) {
    Node* node = list;
    list = node->next;
    free(node);
  }
  kept_by_thread = malloc(444);
  keep(kept_by_thread);
  churn();
  if (count == 1) {
    leak_small();
    leak_large();
    leak_new();
    leak_list();
    std::thread(leak_in_thread).join();
  }
  std::vector<int> on_the_stack(1000);
  keep(on_the_stack.data());
  overwrite_stack();
  _exit(0);  // so that what the stack holds is reachable
}
