// Maps the report of a region without the preceding guide. An attacher leaves this state behind if
// it is killed between the two mremap calls that replace an old region. At the end, the report must
// have been unmapped.
#include <fcntl.h>
#include <sys/mman.h>

#include "../../hook-cxx/abi.hpp"
#include "target.hpp"

using namespace target;
using namespace memhook::abi;

int main() {
  constexpr size_t bytes = rings_offset + max_rings * (ring_prefix_bytes + (1 << 20));
  constexpr size_t report_bytes = bytes - guide_bytes;
  int fd = memfd_create("memhook-region", MFD_ALLOW_SEALING);
  CHECK(fd >= 0 && ftruncate(fd, bytes) == 0);
  CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  // Nothing is mapped before the report.
  void* room = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(room != MAP_FAILED && munmap(room, bytes) == 0);
  void* report = mmap(static_cast<char*>(room) + guide_bytes, report_bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, fd, guide_bytes);
  CHECK(report != MAP_FAILED && close(fd) == 0);
  ready();
  keep(malloc(10));
  unsigned char resident;
  CHECK(mincore(report, 4096, &resident) != 0 && errno == ENOMEM);
  done();
}
