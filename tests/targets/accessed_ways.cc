// One function for each pattern of reads and writes that the scores detect, and similar patterns
// that they must not report. The program reports its own accesses. Two threads alternate by the
// parity of a counter, so their accesses are exact.
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "target.hpp"

using namespace target;

using Bytes = volatile char*;

static Bytes block_of(size_t size) {
  void* block = malloc(size);
  keep(block);
  return static_cast<Bytes>(block);
}
// Two loops, because gcc does not report a write to bytes that the same basic block has just read.
static void use(Bytes block, size_t from, size_t to) {
  for (size_t i = from; i < to; i++) block[i] = static_cast<char>(i);
  long sum = 0;
  for (size_t i = from; i < to; i++) sum += block[i];
  keep(&sum);
}
static void pause_a_while() { std::this_thread::sleep_for(std::chrono::milliseconds(30)); }

#define PLANTED [[gnu::noinline]] static

PLANTED void unread() {
  Bytes block = block_of(2000);
  for (size_t i = 0; i < 2000; i++) block[i] = 1;
  free(const_cast<char*>(block));
}
PLANTED void unwritten() {
  auto* block = static_cast<Bytes>(calloc(2000, 1));
  long sum = 0;
  for (size_t i = 0; i < 2000; i++) sum += block[i];
  CHECK(sum == 0);
  free(const_cast<char*>(block));
}
PLANTED void untouched() { free(const_cast<char*>(block_of(2000))); }
PLANTED void beginning() {
  Bytes block = block_of(8000);
  use(block, 0, 100);
  use(block, 0, 100);
  free(const_cast<char*>(block));
}
PLANTED void early() {
  Bytes block = block_of(2000);
  pause_a_while();
  pause_a_while();
  use(block, 0, 2000);
  free(const_cast<char*>(block));
}
PLANTED void late() {
  Bytes block = block_of(2000);
  use(block, 0, 2000);
  pause_a_while();
  pause_a_while();
  free(const_cast<char*>(block));
}
// Two threads with separate counters, in one cache line or in two.
static void in_turns(Bytes block, size_t of_first, size_t of_second) {
  std::atomic<int> turn = 0;
  auto work = [&](int parity, size_t at) {
    for (int i = 0; i < 200; i++) {
      while (turn.load() % 2 != parity) std::this_thread::yield();
      use(block, at, at + 1);
      turn++;
    }
  };
  std::thread second([&] { work(1, of_second); });
  work(0, of_first);
  second.join();
}
PLANTED void shared_line() {
  Bytes block = block_of(2048);
  auto start = reinterpret_cast<size_t>(block);
  size_t line = (64 - start % 64) % 64;
  use(block, 0, 2048);
  in_turns(block, line, line + 8);
  free(const_cast<char*>(block));
}
PLANTED void shared_block() {
  Bytes block = block_of(2048);
  use(block, 0, 2048);
  in_turns(block, 0, 1024);
  free(const_cast<char*>(block));
}
// No finding: uses all of the block throughout its life.
PLANTED void plain() {
  Bytes block = block_of(2000);
  for (int i = 0; i < 3; i++) {
    use(block, 0, 2000);
    pause_a_while();
  }
  use(block, 0, 2000);
  free(const_cast<char*>(block));
}
// No finding: uses more than half of the block.
PLANTED void most() {
  Bytes block = block_of(2000);
  use(block, 0, 1500);
  free(const_cast<char*>(block));
}
// No finding: a small block that is never read.
PLANTED void small() {
  Bytes block = block_of(100);
  for (size_t i = 0; i < 100; i++) block[i] = 1;
  free(const_cast<char*>(block));
}
// No finding: a block grown by realloc, whose copy is not an access.
PLANTED void moved() {
  void* block = malloc(1000);
  keep(block);
  use(static_cast<Bytes>(block), 0, 1000);
  block = realloc(block, 100000);
  keep(block);
  use(static_cast<Bytes>(block), 0, 100000);
  free(block);
}
// Accesses of a child do not count for its parent.
static void in_child(Bytes block) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    use(block, 0, 4000);
    free(malloc(100));
    _exit(3);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
}
PLANTED void forked() {
  Bytes block = block_of(4000);
  use(block, 0, 1);
  in_child(block);
  use(block, 0, 4);
  free(const_cast<char*>(block));
}

int main() {
  ready();
  unread();
  unwritten();
  untouched();
  beginning();
  early();
  late();
  shared_line();
  shared_block();
  plain();
  most();
  small();
  moved();
  forked();
  done();
}
