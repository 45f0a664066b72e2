#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The name that the Java Native Interface gives to `Program.leak`. The environment and the class are
// not used.
void Java_Program_leak(void* environment, void* class);

__attribute__((noinline)) static void leak_in_native(void) {
  for (int i = 0; i < 40; i++) {
    char* block = malloc(3000);
    if (block == NULL) _exit(7);
    memset(block, 1, 3000);
    __asm__ volatile("" : : "r"(block) : "memory");
  }
}

void Java_Program_leak(void* environment, void* class) {
  (void)environment;
  (void)class;
  leak_in_native();
}
