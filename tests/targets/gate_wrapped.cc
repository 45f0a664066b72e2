// Leaks behind wrappers of malloc. Argument: the number of call paths to the single bug in `parse`.
#include <stdlib.h>
#include <string.h>
#include <string>

extern "C" [[gnu::noinline]] void* yaml_malloc(size_t bytes) {
  void* block = malloc(bytes);
  asm volatile("" : "+r"(block) : : "memory");
  return block;
}

static void lose(void* block) { asm volatile("" : : "r"(block) : "memory"); }

// One bug, reached through the given number of different stacks.
[[gnu::noinline]] void parse(int levels, int way) {
  if (levels == 0) {
    lose(yaml_malloc(100));
  } else if (way & 1) {
    parse(levels - 1, way / 2);
    asm volatile("" : : : "memory");
  } else {
    parse(levels - 1, way / 2);
    asm volatile("nop" : : : "memory");
  }
}

// Other leaks behind the wrapper that `parse` uses.
[[gnu::noinline]] void emit() { lose(yaml_malloc(2000)); }
[[gnu::noinline]] void rename_it() { lose(strdup("a name of thirty bytes or so..")); }
[[gnu::noinline]] void keep_text() { lose(new std::string(500, 'x')); }

int main(int, char** argv) {
  int ways = atoi(argv[1]);
  int levels = 0;
  while (1 << levels < ways) levels++;
  for (int way = 0; way < ways; way++) parse(levels, way);
  emit();
  rename_it();
  keep_text();
  // Overwrites the stack, so that the search finds no stale pointer of these calls.
  char room[4096];
  memset(room, 0, sizeof room);
  asm volatile("" : : "r"(room) : "memory");
}
