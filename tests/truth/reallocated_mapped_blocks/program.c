#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Leaks blocks. Only a register or the stack may still contain the address of the last block.
__attribute__((noinline)) static void leak_mapped(void) {
  for (int i = 0; i < 20; i++) {
    char* block = malloc(4000000);
    if (block == NULL) _exit(7);
    block[0] = 1;
    __asm__ volatile("" : : "r"(block) : "memory");
  }
}

// Overwrites leftovers of the calls above on the stack.
__attribute__((noinline)) static void wipe(void) {
  char stack[4096];
  memset(stack, 0, sizeof stack);
  __asm__ volatile("" : : "r"(stack) : "memory");
}

static char* volatile kept;

static void say(const char* line, size_t length) {
  if (write(1, line, length) != (ssize_t)length) _exit(9);
}

static void wait_for_byte(void) {
  char byte;
  if (read(0, &byte, 1) < 0) _exit(5);
}

int main(void) {
  kept = malloc(5000000);
  if (kept == NULL) return 7;
  kept[0] = 1;
  say("ready\n", 6);
  wait_for_byte();
  kept = realloc(kept, 9000000);
  if (kept == NULL) return 7;
  leak_mapped();
  wipe();
  say("done\n", 5);
  wait_for_byte();
  free(kept);
  return 0;
}
