// A process that says of its command line that it is 64 GiB long (prctl(2), PR_SET_MM).
#include <sys/mman.h>
#include <sys/prctl.h>

#include "target.hpp"

using namespace target;

int main() {
  constexpr size_t bytes = size_t{64} << 30;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* text = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  CHECK(text != MAP_FAILED);
  auto start = reinterpret_cast<unsigned long>(text);
  // The end first: the kernel wants them in this order.
  bool allowed = start > 0 && prctl(PR_SET_MM, PR_SET_MM_ARG_END, start + bytes, 0, 0) == 0 &&
                 prctl(PR_SET_MM, PR_SET_MM_ARG_START, start, 0, 0) == 0;
  say(allowed ? "long" : "refused");
  ready();
  for (int i = 0; i < 10; i++) keep(malloc(123));
  done();
}
