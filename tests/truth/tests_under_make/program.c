#include <stdlib.h>
#include <string.h>

// Nothing points to this block.
__attribute__((noinline)) static void leak_in_test(void) {
  char* block = malloc(40);
  if (block == NULL) exit(7);
  memset(block, 1, 40);
  __asm__ volatile("" : : "r"(block) : "memory");
}

// Overwrites leftovers of the call above on the stack.
__attribute__((noinline)) static void wipe(void) {
  char stack[4096];
  memset(stack, 0, sizeof stack);
  __asm__ volatile("" : : "r"(stack) : "memory");
}

// Every second test leaks.
int main(int count, char** arguments) {
  if (count != 2) return 1;
  if (atoi(arguments[1]) % 2 == 1) leak_in_test();
  wipe();
  return 0;
}
