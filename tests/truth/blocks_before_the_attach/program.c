#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void* kept[4096];

__attribute__((noinline)) static void* leak_now(void) {
  for (int i = 0; i < 100; i++) {
    void* block = malloc(10000);
    if (block == NULL) _exit(7);
    memset(block, 1, 10000);
  }
  return kept;
}

static void say(const char* line, size_t length) {
  if (write(1, line, length) != (ssize_t)length) _exit(9);
}

static void wait_for_byte(void) {
  char byte;
  if (read(0, &byte, 1) < 0) _exit(5);
}

int main(int count, char** arguments) {
  (void)arguments;
  // 40 MiB of touched blocks of 10 KiB, which a program traced from its start does not allocate.
  for (int i = 0; count == 1 && i < 4096 && getenv("TRACED_FROM_START") == NULL; i++) {
    kept[i] = malloc(10240);
    if (kept[i] == NULL) return 3;
    memset(kept[i], 2, 10240);
  }
  say("ready\n", 6);
  wait_for_byte();
  leak_now();
  say("done\n", 5);
  wait_for_byte();
  return 0;
}
