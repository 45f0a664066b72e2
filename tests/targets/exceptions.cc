// Exceptions of operator new pass through the wrapper, and the new-handler is called.
#include <new>
#include <stdexcept>
#include <vector>

#include "target.hpp"

using namespace target;

static size_t volatile huge = SIZE_MAX / 2;
static int handler_calls;

struct Unwound {
  int* count;
  ~Unwound() { ++*count; }
};

[[gnu::noinline]] static void throw_through(int* unwound) {
  Unwound guard{unwound};
  keep(::operator new(huge));
}

[[gnu::noinline]] static void leak_after_throw() { keep(::operator new(77)); }

int main() {
  ready();
  int unwound = 0, caught = 0;
  for (int i = 0; i < 200; i++) {
    try {
      throw_through(&unwound);
    } catch (const std::bad_alloc&) {
      caught++;
    }
    if (i % 20 == 0) leak_after_throw();
  }
  CHECK(caught == 200 && unwound == 200);
  std::set_new_handler([] {
    if (++handler_calls == 3) std::set_new_handler(nullptr);
  });
  try {
    keep(::operator new(huge));
    CHECK(false);
  } catch (const std::bad_alloc&) {
  }
  CHECK(handler_calls == 3);
  for (int i = 0; i < 100; i++) {
    try {
      std::vector<int> numbers(10);
      numbers.at(11) = 1;
    } catch (const std::out_of_range&) {
      caught++;
    }
  }
  CHECK(caught == 300);
  done();
}
