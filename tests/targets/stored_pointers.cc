// Variables that the loader has set to malloc's address. The program has since stored other values
// in some of them, which memhook-rs must not change.
#include <cstdint>

#include "target.hpp"

using namespace target;
using Function = void* (*)(size_t);

static void* own_function(size_t size) { return reinterpret_cast<void*>(size); }

static Function volatile kept = malloc;
static Function volatile own = malloc;
static Function volatile number = malloc;
static Function volatile inside = malloc;

[[gnu::noinline]] static void by_pointer() { keep(kept(77)); }

int main() {
  auto within = reinterpret_cast<Function>(reinterpret_cast<uintptr_t>(own_function) + 1);
  own = own_function;
  number = reinterpret_cast<Function>(42);
  inside = within;
  auto is_as_stored = [within] {
    return own == own_function && number == reinterpret_cast<Function>(42) && inside == within;
  };
  ready();
  CHECK(is_as_stored());
  by_pointer();
  CHECK(own(5) == reinterpret_cast<void*>(5));
  done();
  CHECK(is_as_stored());
  return 0;
}
