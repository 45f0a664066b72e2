// Blocks with known accesses: some are touched every 20 ms, others never after their creation. The
// functions create blocks before "ready" and more blocks after the first byte, so that there are
// untraced and traced blocks. At the second byte the program prints "longest" and the longest time
// in ms for which its first thread touched nothing since.
//
// Arguments: number of threads that touch blocks (1), "nobody" (nothing is touched), and "lose"
// (100 blocks are leaked after "ready") or "turns" (a thread repeatedly sleeps briefly, so that it
// is scheduled often).
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "target.hpp"

static const int COUNT = 2000;
static const size_t BYTES = 1000, LOST_BYTES = 6000;

static std::atomic<bool> stop, damaged;

using Blocks = std::vector<unsigned char*>;

__attribute__((noinline)) static unsigned char* filled(unsigned char* block) {
  memset(block, 7, BYTES);
  return block;
}

// Never touched again.
__attribute__((noinline)) static unsigned char* cold_block() {
  return filled(static_cast<unsigned char*>(malloc(BYTES)));
}
// Written completely.
__attribute__((noinline)) static unsigned char* written_block() {
  return filled(static_cast<unsigned char*>(malloc(BYTES)));
}
// Returns a block that is read completely but never written.
__attribute__((noinline)) static unsigned char* read_block() {
  return filled(static_cast<unsigned char*>(malloc(BYTES)));
}
// Every other block is read; the rest are cold, and share pages with the read blocks.
__attribute__((noinline)) static unsigned char* mixed_block() {
  return filled(static_cast<unsigned char*>(malloc(BYTES)));
}

// These blocks are unreachable.
__attribute__((noinline)) static void lost_block() {
  void* block = malloc(LOST_BYTES);
  memset(block, 7, LOST_BYTES);
  target::keep(block);
}

struct Kinds {
  Blocks cold, written, read, mixed;
};

static void make(Kinds& kinds) {
  for (int i = 0; i < COUNT; i++) kinds.cold.push_back(cold_block());
  for (int i = 0; i < COUNT; i++) kinds.written.push_back(written_block());
  for (int i = 0; i < COUNT; i++) kinds.read.push_back(read_block());
  for (int i = 0; i < COUNT; i++) kinds.mixed.push_back(mixed_block());
}

static void look(const unsigned char* block) {
  unsigned sum = 0;
  for (size_t i = 0; i < BYTES; i++) sum += static_cast<const volatile unsigned char*>(block)[i];
  if (sum != 7 * BYTES) damaged = true;
}

static void touch(Kinds& kinds) {
  for (unsigned char* block : kinds.written) filled(block);
  for (unsigned char* block : kinds.read) look(block);
  for (size_t i = 0; i < kinds.mixed.size(); i += 2) look(kinds.mixed[i]);
}

static Kinds before, after;
static std::atomic<bool> has_more, is_idle;
static std::atomic<long> longest_ms;

static long now_ms() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

static void* serve(void* counts) {
  long last = now_ms();
  while (!stop) {
    if (!is_idle) {
      touch(before);
      if (has_more) touch(after);
    }
    long now = now_ms();
    if (counts && now - last > longest_ms) longest_ms = now - last;
    last = now;
    usleep(20'000);
  }
  return nullptr;
}

static void* take_turns(void*) {
  while (!stop) usleep(1);
  return nullptr;
}

int main(int argc, char** argv) {
  size_t threads = argc > 1 ? static_cast<size_t>(atoi(argv[1])) : 1;
  is_idle = argc > 2 && !strcmp(argv[2], "nobody");
  make(before);
  std::vector<pthread_t> all(threads);
  for (size_t i = 0; i < threads; i++)
    CHECK(pthread_create(&all[i], nullptr, serve, i == 0 ? &stop : nullptr) == 0);
  if (argc > 3 && !strcmp(argv[3], "turns")) {
    all.emplace_back();
    CHECK(pthread_create(&all.back(), nullptr, take_turns, nullptr) == 0);
  }
  target::ready();
  make(after);
  if (argc > 3 && !strcmp(argv[3], "lose"))
    for (int i = 0; i < 100; i++) lost_block();
  has_more = true;
  longest_ms = 0;
  target::done();
  char line[64];
  snprintf(line, sizeof line, "longest %ld", longest_ms.exchange(0));
  target::say(line);
  target::wait_for_byte();
  stop = true;
  for (pthread_t thread : all) pthread_join(thread, nullptr);
  // Watched blocks still contain their values.
  for (Kinds* kinds : {&before, &after})
    for (Blocks* blocks : {&kinds->cold, &kinds->written, &kinds->read, &kinds->mixed})
      for (unsigned char* block : *blocks) look(block);
  return damaged ? 1 : 0;
}
