// Looked up by tests/files.rs. Built with: c++ -g -O2 -Wl,--build-id=sha1. The labels are the
// addresses that are looked up. mark_inner is in a function that is inlined into another.
#include <cstdlib>

namespace shop {

struct Order {
  static inline void* reserve(unsigned long size) {
    asm volatile(".globl mark_inner\nmark_inner: nop");  // line 9
    return malloc(size);
  }
};

[[gnu::noinline]] void* place_order(int count) {
  return Order::reserve(count * 16ul);  // line 15
}

}  // namespace shop

int main(int argc, char**) { return shop::place_order(argc) == nullptr; }
