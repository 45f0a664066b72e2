// Repeats the shortest system call that enters the kernel, for tools that trace system calls.
#include <sys/syscall.h>

#include "measured.hpp"

using namespace measured;

int main() {
  return serve(1, [](int, double milliseconds) {
    constexpr int block = 200;
    return repeat(milliseconds, block, [] {
      for (int i = 0; i < block; i++) syscall(SYS_getppid);
    });
  });
}
