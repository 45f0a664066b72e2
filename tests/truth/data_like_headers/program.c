#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };

// Writes what the header of a block with its own mapping contains: a zero, and the size with a flag.
// The second word is also a table of 16-bit numbers: 2, 3, 0, 0.
static void write_table(char* page, uint64_t bytes) {
  uint64_t words[2] = {0, bytes | 2};
  memcpy(page, words, sizeof words);
}

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

static void say(const char* line, size_t length) {
  if (write(1, line, length) != (ssize_t)length) _exit(9);
}

static void wait_for_byte(void) {
  char byte;
  if (read(0, &byte, 1) < 0) _exit(5);
}

int main(void) {
  const size_t bytes = 1 << 20;
  char* tables = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (tables == MAP_FAILED) _exit(6);
  write_table(tables + 3 * PAGE, 0x30000);
  write_table(tables + 128 * PAGE, 0x20000);
  say("ready\n", 6);
  wait_for_byte();
  leak_mapped();
  wipe();
  say("done\n", 5);
  wait_for_byte();
  return 0;
}
