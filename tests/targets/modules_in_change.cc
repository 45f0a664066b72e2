// Marks its list of modules as changing, as the loader does during a dlopen(3), until the test says
// otherwise.
#include <link.h>

#include "target.hpp"

using namespace target;

// The loader's own list; `_r_debug` may be a copy of it in the program.
static r_debug* modules() {
  for (const ElfW(Dyn)* entry = _DYNAMIC; entry->d_tag != DT_NULL; entry++)
    if (entry->d_tag == DT_DEBUG) return reinterpret_cast<r_debug*>(entry->d_un.d_ptr);
  return nullptr;
}

int main() {
  r_debug* list = modules();
  CHECK(list != nullptr && list->r_state == r_debug::RT_CONSISTENT);
  list->r_state = r_debug::RT_ADD;
  ready();
  list->r_state = r_debug::RT_CONSISTENT;
  say("consistent");
  wait_for_byte();
  for (int i = 0; i < 7; i++) keep(malloc(100));
  done();
}
