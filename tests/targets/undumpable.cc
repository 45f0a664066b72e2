// A process whose memory even its own user cannot read.
#include <sys/prctl.h>

#include "target.hpp"

using namespace target;

int main() {
  CHECK(prctl(PR_SET_DUMPABLE, 0) == 0);
  ready();
  for (int i = 0; i < 7; i++) keep(malloc(400));
  done();
}
