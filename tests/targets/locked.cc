// Locks all of its memory, present and future, as real-time programs and programs with secrets do.
// With an argument, locks only touched pages.
#include <sys/mman.h>

#include "target.hpp"

using namespace target;

[[gnu::noinline]] static void lose() { keep(malloc(48)); }

int main(int count, char**) {
  int on_fault = count > 1 ? MCL_ONFAULT : 0;
  CHECK(mlockall(MCL_CURRENT | MCL_FUTURE | on_fault) == 0);
  ready();
  for (int i = 0; i < 1000; i++) lose();
  done();
}
