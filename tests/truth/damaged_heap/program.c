#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((noinline)) static void leak_before_damage(void) {
  for (int i = 0; i < 20; i++) {
    char* block = malloc(600);
    if (block == NULL) _exit(7);
    memset(block, 1, 600);
    __asm__ volatile("" : : "r"(block) : "memory");
  }
}

// Keeps the compiler from knowing the size of a block.
static char* volatile kept[2];

static void say(const char* line, size_t length) {
  if (write(1, line, length) != (ssize_t)length) _exit(9);
}

static void wait_for_byte(void) {
  char byte;
  if (read(0, &byte, 1) < 0) _exit(5);
}

int main(void) {
  kept[0] = malloc(104);
  kept[1] = malloc(104);
  if (kept[0] == NULL || kept[1] == NULL) return 7;
  say("ready\n", 6);
  wait_for_byte();
  leak_before_damage();
  memset(kept[0] + 104, 0x41, 8);
  say("done\n", 5);
  wait_for_byte();
  _exit(0);
}
