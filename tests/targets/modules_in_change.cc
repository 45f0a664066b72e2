// Marks its list of modules as changing, as the loader does during a dlopen(3), until the test says
// otherwise.
#include <link.h>

#include "target.hpp"

using namespace target;

int main() {
  _r_debug.r_state = r_debug::RT_ADD;
  ready();
  _r_debug.r_state = r_debug::RT_CONSISTENT;
  say("consistent");
  wait_for_byte();
  for (int i = 0; i < 7; i++) keep(malloc(100));
  done();
}
