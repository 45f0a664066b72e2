#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Unreachable blocks, except that a register or the stack may still contain the last address.
__attribute__((noinline)) static void leak_here(void) {
  for (int i = 0; i < 300; i++) {
    char* block = malloc(1000);
    if (block == NULL) _exit(7);
    memset(block, 1, 1000);
    __asm__ volatile("" : : "r"(block) : "memory");
  }
}

static void say(const char* line, size_t length) {
  if (write(1, line, length) != (ssize_t)length) _exit(9);
}

static void wait_for_byte(void) {
  char byte;
  if (read(0, &byte, 1) < 0) _exit(5);
}

int main(void) {
  // Makes the allocator create its caches before the trace.
  free(malloc(1000));
  say("ready\n", 6);
  wait_for_byte();
  leak_here();
  say("done\n", 5);
  wait_for_byte();
  return 0;
}
