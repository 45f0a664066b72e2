// Plants a leak of 100 blocks of 96 bytes in leak_here, among balanced call paths. Protocol: a line
// on stdin starts the work, and the answer is "done". Exits at the end of input. The program checks
// its own blocks.
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>

static void* kept[100];

__attribute__((noinline)) void leak_here(int i) {
  kept[i] = malloc(96);
  memset(kept[i], i, 96);
}

__attribute__((noinline)) void balanced(int i) {
  void* p = malloc(64 + i % 512);
  p = realloc(p, 1024);
  free(p);
  delete[] new char[33];
  std::string text(100 + i % 7, 'x');
  asm volatile("" ::"r"(text.data()) : "memory");
}

int main() {
  char c;
  void* before = malloc(4321);
  asm volatile("" ::"r"(before) : "memory");  // keeps the pair from being optimized away
  if (write(1, "ready\n", 6) != 6) return 1;
  if (read(0, &c, 1) != 1) return 1;
  for (int i = 0; i < 20000; i++) {
    balanced(i);
    if (i % 200 == 0) leak_here(i / 200);
  }
  free(before);
  if (write(1, "done\n", 5) != 5) return 1;
  if (read(0, &c, 1) != 0) return 1;
  for (int i = 0; i < 100; i++)
    for (int j = 0; j < 96; j++)
      if (static_cast<unsigned char*>(kept[i])[j] != i) return 2;
  return 0;
}
