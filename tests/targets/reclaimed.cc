// A program that leaks a known number of blocks before an attach, and checks the blocks in use.
//
//   reclaimed [BLOCKS] [busy]
//
// busy: one of its threads never sleeps.
//
// Protocol: prints "planted BLOCKS BYTES" and "ready". The answer to each byte on stdin is "done
// USED MAPPED", the bytes that malloc counts in its heaps and in separate mappings. Exits at the
// end of input, with status 7 if a check fails.
#include <malloc.h>
#include <pthread.h>

#include <atomic>

#include "target.hpp"

using namespace target;

static const size_t USED = 500;
// These sizes exceed the size of cached blocks (1,032 bytes), because mallinfo2 counts cached
// blocks as used.
static const size_t LOST_BYTES = 2000, LARGE_BYTES = 300000;
static unsigned char* used[USED];
static size_t lost_blocks, lost_bytes;

static unsigned char mark(size_t number) { return static_cast<unsigned char>(number * 7 + 1); }

[[gnu::noinline]] static void lose(size_t bytes) {
  void* block = malloc(bytes);
  CHECK(block);
  memset(block, 0, bytes);
  lost_blocks++;
  lost_bytes += malloc_usable_size(block);
}

[[gnu::noinline]] static void plant(size_t blocks) {
  for (size_t i = 0; i < blocks; i++) {
    lose(LOST_BYTES);
    if (i >= USED) continue;
    used[i] = static_cast<unsigned char*>(malloc(LOST_BYTES));
    CHECK(used[i]);
    memset(used[i], mark(i), LOST_BYTES);
  }
  lose(LARGE_BYTES);
}

// The stack used for planting must not keep blocks alive.
[[gnu::noinline]] static void scrub_stack() {
  char room[65536];
  memset(room, 0, sizeof room);
  asm volatile("" ::"r"(room) : "memory");
}

[[gnu::noinline]] static void check() {
  for (size_t i = 0; i < USED && used[i]; i++)
    for (size_t at = 0; at < LOST_BYTES; at++) CHECK(used[i][at] == mark(i));
}

static std::atomic<bool> stop;

static void* be_busy(void*) {
  while (!stop) {
  }
  return nullptr;
}

int main(int argc, char** argv) {
  plant(argc > 1 ? strtoul(argv[1], nullptr, 10) : 300);
  scrub_stack();
  pthread_t busy;
  const bool is_busy = argc > 2;
  if (is_busy) CHECK(pthread_create(&busy, nullptr, be_busy, nullptr) == 0);
  char line[128];
  snprintf(line, sizeof line, "planted %zu %zu", lost_blocks, lost_bytes);
  say(line);
  say("ready");
  char byte;
  for (;;) {
    ssize_t got = read(0, &byte, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got != 1) break;
    check();
    // Reuses released blocks, which must be intact.
    void* again = malloc(LOST_BYTES);
    CHECK(again);
    memset(again, 0xee, LOST_BYTES);
    free(again);
    struct mallinfo2 m = mallinfo2();
    snprintf(line, sizeof line, "done %zu %zu", m.uordblks, m.hblkhd);
    say(line);
    scrub_stack();
  }
  check();
  stop = true;
  if (is_busy) CHECK(pthread_join(busy, nullptr) == 0);
  return 0;
}
