// Keeps a descriptor open that looks like a leftover of a killed attacher.
#include <sys/mman.h>

#include "target.hpp"

using namespace target;

int main() {
  CHECK(memfd_create("memhook-region", MFD_CLOEXEC) >= 0);
  CHECK(memfd_create("somebody-else's", MFD_CLOEXEC) >= 0);
  ready();
  keep(malloc(100));
  done();
}
