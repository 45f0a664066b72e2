// A service that leaks until memory is exhausted. One function allocates nine of ten bytes.
// Arguments: maximum number of leaked bytes (1 GiB), and microseconds between two megabytes (1000).
//
// Protocol: prints "ready"; a byte then starts the leak.
#include <memory>
#include <vector>

#include "target.hpp"

__attribute__((noinline)) static char* planted_leak(size_t bytes) {
  char* block = static_cast<char*>(malloc(bytes));
  CHECK(block);
  memset(block, 1, bytes);
  return block;
}

__attribute__((noinline)) static char* usual_work(size_t bytes) {
  char* block = static_cast<char*>(malloc(bytes));
  CHECK(block);
  memset(block, 2, bytes);
  return block;
}

int main(int count, char** arguments) {
  size_t most = count > 1 ? strtoull(arguments[1], nullptr, 10) : size_t{1} << 30;
  useconds_t pause = count > 2 ? static_cast<useconds_t>(atoi(arguments[2])) : 1000;
  char* window[512] = {};
  target::ready();
  size_t at = 0;
  for (size_t leaked = 0; leaked < most;) {
    for (int i = 0; i < 256; ++i) {
      target::keep(planted_leak(4000));
      leaked += 4000;
      char*& place = window[at++ % 512];
      free(place);
      place = usual_work(1000);
    }
    usleep(pause);
  }
  target::say("done");
  target::wait_for_byte();
}
