// 160,000 small blocks that live until the end; each is written and read. The program is compiled
// with access callbacks and linked with the access runtime.
#include "target.hpp"

using namespace target;

int main() {
  ready();
  void** last = nullptr;
  for (int i = 0; i < 160'000; i++) {
    auto** block = static_cast<void**>(malloc(40));
    CHECK(block != nullptr);
    *block = last;
    last = block;
  }
  long blocks = 0;
  for (void** at = last; at; at = static_cast<void**>(*at)) blocks++;
  CHECK(blocks == 160'000);
  done();
}
