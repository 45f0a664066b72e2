// A process whose names contain terminal control characters. The test gives the function a name
// that no compiler would produce.
#include <sys/prctl.h>

#include "target.hpp"

using namespace target;

extern "C" [[gnu::noinline]] void harmless_name() {
  for (int i = 0; i < 7; i++) keep(malloc(321));
}

int main() {
  CHECK(prctl(PR_SET_NAME, "\x1b]0;owned\x07\nx\x7f") == 0);
  keep(malloc(100));
  ready();
  harmless_name();
  done();
}
