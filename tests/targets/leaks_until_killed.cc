// A service that leaks until it has no memory left: nine of ten bytes are kept by one function. Argument: bytes to
// leak at most (1 GiB); it leaks a megabyte each millisecond.
//
// Protocol: "ready", then a byte begins the leak.
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
  size_t most = count == 2 ? strtoull(arguments[1], nullptr, 10) : size_t{1} << 30;
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
    usleep(1000);
  }
  target::say("done");
  target::wait_for_byte();
}
