// Repeats a fixed sequence of allocations for each byte of the input. Releases all blocks but
// seven, which it keeps until the end. One realloc in the sequence fails.
#include <cstdint>
#include <new>
#include <vector>

#include "target.hpp"

using namespace target;

static unsigned char* kept[7 * 64];
static int kept_count;

static void round() {
  for (int i = 0; i < 1000; i++) {
    auto* block = static_cast<unsigned char*>(malloc(24));
    keep(block);
    memset(block, i & 0xff, 24);
    if (i % 143 == 1)
      kept[kept_count++] = block;
    else
      free(block);
  }
  for (int i = 0; i < 200; i++) {
    auto* block = static_cast<unsigned char*>(calloc(10, 50));
    keep(block);
    CHECK(block[0] == 0 && block[499] == 0);
    memset(block, 0xff, 500);
    free(block);
  }
  for (int i = 0; i < 10; i++) {
    void* block = aligned_alloc(64, 4096);
    keep(block);
    CHECK(reinterpret_cast<uintptr_t>(block) % 64 == 0);
    free(block);
  }
  for (int i = 0; i < 10; i++) {
    void* block = nullptr;
    CHECK(posix_memalign(&block, 128, 1000) == 0 && reinterpret_cast<uintptr_t>(block) % 128 == 0);
    keep(block);
    free(block);
  }
  for (int i = 0; i < 50; i++) {
    void* block = ::operator new(64);
    keep(block);
    ::operator delete(block);
  }
  for (int i = 0; i < 100; i++) {
    auto* block = static_cast<char*>(malloc(100));
    keep(block);
    strcpy(block, "moved");
    block = static_cast<char*>(realloc(block, 3000));
    CHECK(block && strcmp(block, "moved") == 0);
    keep(block);
    free(block);
  }
  auto* block = static_cast<char*>(malloc(100));
  keep(block);
  strcpy(block, "stays");
  volatile size_t most = SIZE_MAX / 2;
  CHECK(realloc(block, most) == nullptr && errno == ENOMEM);
  CHECK(strcmp(block, "stays") == 0);
  free(block);
}

int main() {
  say("ready");
  char byte;
  while (read(0, &byte, 1) == 1 && kept_count < 7 * 64) {
    errno = 0;
    round();
    say("round");
  }
  for (int i = 0; i < kept_count; i++) {
    int at = i % 7 * 143 + 1;
    for (int k = 0; k < 24; k++) CHECK(kept[i][k] == (at & 0xff));
    free(kept[i]);
  }
}
