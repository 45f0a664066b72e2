// Keeps a sorted list of random values; an operation inserts or removes one value. It leaks a share
// of the removed nodes, together with their payloads. The program tests the reclaiming of leaks at
// run time: every node and payload in use contains a pattern of its own address, which each visit
// checks, so it detects a block that was wrongly released and reused.
//
//   leaktest [THREADS] [PERCENT LOST] [OPERATIONS A ROUND] [PAUSE BETWEEN OPERATIONS, us] [BYTES]
//
// BYTES: number of bytes that the program may leak before the next byte on stdin, which allows the
// same number again. After that, it releases the nodes that it removes, so that a test's work does
// not grow with its duration. Without BYTES there is no limit.
//
// Protocol: prints "ready". The answer to each byte on stdin is "done OPERATIONS NANOSECONDS HEAP
// LOST-BYTES" with totals since the start; HEAP is the memory that malloc has obtained from the
// system. Exits at the end of input, with status 2 if a check failed.
#include <malloc.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

static std::atomic<bool> stop;
static std::atomic<long> operations, failed, lost_bytes, allowed_bytes;
static std::atomic<long> busy_ns;

struct Payload {
  uintptr_t check;
  size_t bytes;
  unsigned char data[];
};

struct Node {
  uintptr_t check;
  Node* next;
  long value;
  Payload* payload;
};

static uintptr_t pattern(const void* p) { return ~reinterpret_cast<uintptr_t>(p) * 31; }

static Payload* make_payload(size_t bytes) {
  auto* p = static_cast<Payload*>(malloc(sizeof(Payload) + bytes));
  p->check = pattern(p);
  p->bytes = bytes;
  memset(p->data, static_cast<unsigned char>(p->check), bytes);
  return p;
}

static void check(const Node* n) {
  const Payload* p = n->payload;
  bool good = n->check == pattern(n) && p->check == pattern(p);
  if (good)
    for (size_t i = 0; i < p->bytes; i++) good &= p->data[i] == static_cast<unsigned char>(p->check);
  if (!good) failed++;
}

__attribute__((noinline)) static void remove_next(Node** at, bool lose) {
  Node* n = *at;
  *at = n->next;
  check(n);
  if (lose) {
    lost_bytes += malloc_usable_size(n) + malloc_usable_size(n->payload);
    n->next = nullptr;
  } else {
    free(n->payload);
    free(n);
  }
}

static void work(unsigned seed, unsigned percent, long round, unsigned pause_us) {
  Node* list = nullptr;
  auto random = [&](unsigned below) {
    seed = seed * 1664525 + 1013904223;
    return (seed >> 8) % below;
  };
  while (!stop) {
    auto begin = std::chrono::steady_clock::now();
    long i = 0;
    for (; i < round && !stop; i++) {
      long value = random(1000);
      Node** at = &list;
      while (*at && (*at)->value < value) at = &(*at)->next;
      if (*at && (*at)->value == value) {
        remove_next(at, random(100) < percent && lost_bytes < allowed_bytes);
      } else {
        auto* n = static_cast<Node*>(malloc(sizeof(Node)));
        // Sometimes, the payload is large enough for a separate mapping.
        size_t bytes = random(5000) ? random(400) : 200000;
        *n = {pattern(n), *at, value, make_payload(bytes)};
        *at = n;
      }
      if (pause_us) usleep(pause_us);
    }
    busy_ns += (std::chrono::steady_clock::now() - begin).count();
    operations += i;
    for (Node* n = list; n; n = n->next) check(n);
  }
  while (list) remove_next(&list, false);
}

int main(int argc, char** argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 1;
  unsigned percent = argc > 2 ? atoi(argv[2]) : 10;
  long round = argc > 3 ? atol(argv[3]) : 10000;
  unsigned pause_us = argc > 4 ? atoi(argv[4]) : 0;
  long allowance = argc > 5 ? atol(argv[5]) : 0;
  allowed_bytes = allowance ? allowance : LONG_MAX;
  std::vector<std::thread> all;
  for (int i = 0; i < threads; i++) all.emplace_back(work, i + 1, percent, round, pause_us);
  if (write(1, "ready\n", 6) != 6) return 1;
  char c;
  while (read(0, &c, 1) == 1) {
    if (allowance) allowed_bytes = lost_bytes + allowance;
    struct mallinfo2 m = mallinfo2();
    char line[200];
    int n = snprintf(line, sizeof line, "done %ld %ld %zu %ld\n", operations.load(), busy_ns.load(),
                     m.arena + m.hblkhd, lost_bytes.load());
    if (write(1, line, n) != n) return 1;
  }
  stop = true;
  for (auto& t : all) t.join();
  return failed ? 2 : 0;
}
