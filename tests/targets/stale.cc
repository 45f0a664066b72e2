// Blocks of known use: some are touched every 20 ms, some never after they were made. What is there
// before "ready" is made again after the byte, by the same functions, so that there are blocks from
// before an attach and traced ones. Prints "done" with the bytes of each kind.
//
// Arguments: threads that touch (1), "once" (makes everything only after the byte), and "nobody"
// (nothing is touched).
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "target.hpp"

static const int COUNT = 2000;
static const size_t BYTES = 1000;

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
// Written as a whole.
__attribute__((noinline)) static unsigned char* written_block() {
  return filled(static_cast<unsigned char*>(malloc(BYTES)));
}
// Read as a whole, never written.
__attribute__((noinline)) static unsigned char* read_block() {
  return filled(static_cast<unsigned char*>(malloc(BYTES)));
}
// Every other one is read; half of them are cold, on the same pages.
__attribute__((noinline)) static unsigned char* mixed_block() {
  return filled(static_cast<unsigned char*>(malloc(BYTES)));
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

// A handful at a time: whoever is started meanwhile is ready before all are made.
static Kinds before, after;
static std::atomic<bool> has_more, is_idle;

static void* serve(void*) {
  while (!stop) {
    if (!is_idle) {
      touch(before);
      if (has_more) touch(after);
    }
    usleep(20'000);
  }
  return nullptr;
}

int main(int argc, char** argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 1;
  bool once = false;
  for (int i = 2; i < argc; i++) {
    once |= !strcmp(argv[i], "once");
    if (!strcmp(argv[i], "nobody")) is_idle = true;
  }
  if (!once) make(before);
  // Reserved before, so that no vector moves while others read it.
  std::vector<pthread_t> all(static_cast<size_t>(threads));
  for (pthread_t& thread : all) CHECK(pthread_create(&thread, nullptr, serve, nullptr) == 0);
  target::ready();
  make(after);
  has_more = true;
  char line[64];
  snprintf(line, sizeof line, "done %zu", COUNT * BYTES);
  target::say(line);
  target::wait_for_byte();
  stop = true;
  for (pthread_t thread : all) pthread_join(thread, nullptr);
  // What was watched still holds what it should.
  for (Kinds* kinds : {&before, &after})
    for (Blocks* blocks : {&kinds->cold, &kinds->written, &kinds->read, &kinds->mixed})
      for (unsigned char* block : *blocks) look(block);
  return damaged ? 1 : 0;
}
