// Protocol of every target: print "ready", wait for a byte, work, print "done", wait for the end of
// the input, and return the result of the self-check.
#pragma once
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace target {

inline void say(const char* text) {
  // Does not use stdio, whose buffers are allocations.
  char line[128];
  int length = snprintf(line, sizeof line, "%s\n", text);
  if (write(1, line, static_cast<size_t>(length)) != length) _exit(9);
}

inline void wait_for_byte() {
  char byte;
  while (read(0, &byte, 1) < 0 && errno == EINTR) {
  }
}

inline void ready() {
  say("ready");
  wait_for_byte();
}

// Reports the end of the work, and returns when the test closes the input.
inline void done() {
  say("done");
  wait_for_byte();
}

// Terminates the target if its self-check fails.
#define CHECK(condition)                                                  \
  do {                                                                    \
    if (!(condition)) {                                                   \
      fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
      _exit(7);                                                           \
    }                                                                     \
  } while (0)

// Keeps the compiler from removing an allocation.
inline void keep(void* block) { asm volatile("" : : "r"(block) : "memory"); }

}  // namespace target
