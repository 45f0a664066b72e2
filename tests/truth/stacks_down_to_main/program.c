#include <stdlib.h>
#include <unistd.h>

__attribute__((noinline)) static void leak_blocks(int count) {
  for (int i = 0; i < count; i++) {
    void* block = malloc(600);
    __asm__ volatile("" : : "r"(block) : "memory");
  }
}

__attribute__((noinline)) static void work(int count) {
  leak_blocks(count);
  __asm__ volatile("" : : : "memory");
}

static void say(const char* line, size_t length) {
  if (write(1, line, length) != (ssize_t)length) _exit(9);
}

static void wait_for_byte(void) {
  char byte;
  if (read(0, &byte, 1) < 0) _exit(5);
}

int main(void) {
  say("ready\n", 6);
  wait_for_byte();
  work(50);
  say("done\n", 5);
  wait_for_byte();
  return 0;
}
