// An auditor (rtld-audit(7)) that keeps a list of loaded modules under a lock.
#include <link.h>

#include "lent_lock.hpp"

extern "C" {
__attribute__((visibility("default"))) unsigned la_version(unsigned version) { return version; }
__attribute__((visibility("default"))) unsigned la_objopen(struct link_map*, Lmid_t, uintptr_t*) {
  target::take_lent_lock();
  return 0;
}
}
