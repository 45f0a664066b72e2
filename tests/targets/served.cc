// A service that works on request: each byte on stdin is one request, with "done" as the answer.
//
//   l  keeps 100 blocks of 1,000 bytes, and immediately releases 50 blocks of 64 bytes
//   f  forks a child that keeps 10 blocks of 500 bytes for each byte that it gets
//   c  passes a byte to that child
//
// The service and its child exit at the end of input.
#include <sys/wait.h>

#include "target.hpp"

using namespace target;

[[gnu::noinline]] static void planted_leak(size_t size) { keep(malloc(size)); }

[[gnu::noinline]] static void passing() {
  void* blocks[50];
  for (void*& block : blocks) keep(block = malloc(64));
  for (void* block : blocks) free(block);
}

[[gnu::noinline]] static void child_leak(size_t size) { keep(calloc(1, size)); }

static int to_child[2], from_child[2];

[[noreturn]] static void be_child() {
  close(to_child[1]);
  char byte;
  while (read(to_child[0], &byte, 1) == 1) {
    for (int i = 0; i < 10; i++) child_leak(500);
    if (write(from_child[1], &byte, 1) != 1) break;
  }
  _exit(0);
}

int main() {
  say("ready");
  pid_t child = 0;
  char byte;
  for (;;) {
    ssize_t got = read(0, &byte, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got != 1) break;
    if (byte == 'l') {
      for (int i = 0; i < 100; i++) planted_leak(1000);
      passing();
    } else if (byte == 'f') {
      CHECK(pipe(to_child) == 0 && pipe(from_child) == 0);
      child = fork();
      CHECK(child >= 0);
      if (child == 0) be_child();
    } else if (byte == 'c') {
      CHECK(write(to_child[1], &byte, 1) == 1 && read(from_child[0], &byte, 1) == 1);
    }
    say("done");
  }
  if (child > 0) {
    close(to_child[1]);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
  }
  return 0;
}
