// One function for each pattern that the scores and inferences detect, and similar patterns without
// a finding.
#include <chrono>
#include <thread>
#include <vector>

#include "target.hpp"

using namespace target;

static void pause_a_moment() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

// Allocates and releases a block in each iteration of a loop.
[[gnu::noinline]] static void looped() {
  for (int i = 0; i < 5000; i++) {
    void* block = malloc(64);
    keep(block);
    free(block);
    if (i % 500 == 0) pause_a_moment();
  }
}

// Grows twenty vectors without reserve: 4, 8, ..., 4096 bytes, so each outgrows ten blocks.
[[gnu::noinline]] static void grown() {
  for (int i = 0; i < 20; i++) {
    std::vector<int> numbers;
    for (int n = 0; n < 1024; n++) numbers.push_back(n);
    keep(numbers.data());
  }
}

// A chain of 200 reallocs, each of which adds 100 bytes.
[[gnu::noinline]] static void* lengthened(void* block, size_t size) { return realloc(block, size); }

[[gnu::noinline]] static void chained() {
  void* block = nullptr;
  for (size_t size = 100; size <= 20000; size += 100) keep(block = lengthened(block, size));
  free(block);
}

// No finding: a buffer that doubles, which is right for an unknown final size.
[[gnu::noinline]] static void doubled() {
  void* block = nullptr;
  for (size_t size = 1024; size <= 1 << 20; size *= 2) keep(block = lengthened(block, size));
  free(block);
}

// Two call sites alternately lengthen one block by 16 bytes per step. They form one chain, with
// steps from both sites. No block could be reused, so it is not a loop.
[[gnu::noinline]] static void in_turns() {
  void* block = nullptr;
  for (size_t step = 1; step < 1500; step++) {
    keep(block = lengthened(block, 32 * step));
    keep(block = lengthened(block, 32 * step + 16));
    if (step % 300 == 0) pause_a_moment();
  }
  free(block);
}

struct Node {
  Node* next;
  long value[2];
};

// Allocates 3000 small blocks of one size, all live simultaneously.
[[gnu::noinline]] static Node* listed() {
  Node* first = nullptr;
  for (int i = 0; i < 3000; i++) keep(first = new Node{first, {i, i}});
  return first;
}

// No finding: blocks of all sizes that stay, each larger than the last.
[[gnu::noinline]] static void kept() {
  for (size_t size = 100; size < 400; size++) keep(malloc(size));
}

// No finding: a few short-lived blocks.
[[gnu::noinline]] static void few() {
  for (size_t size = 1; size < 90; size++) {
    void* block = malloc(size);
    keep(block);
    free(block);
  }
}

// No finding: a vector that reserves its size.
[[gnu::noinline]] static void reserved() {
  std::vector<int> numbers;
  numbers.reserve(100000);
  for (int n = 0; n < 100000; n++) numbers.push_back(n);
  keep(numbers.data());
}

int main() {
  ready();
  kept();
  looped();
  grown();
  chained();
  doubled();
  in_turns();
  Node* first = listed();
  few();
  reserved();
  pause_a_moment();
  while (first) {
    Node* next = first->next;
    delete first;
    first = next;
  }
  done();
}
