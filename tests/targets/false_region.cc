// Has memory mapped that looks like an attacher's, and takes its pages away all the time.
#include <sys/mman.h>

#include <atomic>
#include <thread>

#include "../../hook-cxx/abi.hpp"
#include "target.hpp"

using namespace target;
using namespace memhook::abi;

int main() {
  // As an attach of the usual ring size makes it; without a control block it looks like that of an
  // attacher that was killed early.
  long bytes = static_cast<long>(rings_offset + max_rings * (ring_prefix_bytes + (1 << 20)));
  int fd = memfd_create("memhook-region", MFD_ALLOW_SEALING);
  CHECK(fd >= 0 && ftruncate(fd, bytes) == 0);
  void* map = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_NORESERVE, fd, 0);
  CHECK(map != MAP_FAILED);
  std::atomic<bool> stop{false};
  std::thread truncating([&] {
    while (!stop) {
      CHECK(ftruncate(fd, 0) == 0);
      usleep(300);
      CHECK(ftruncate(fd, bytes) == 0);
      usleep(100);
      free(malloc(100));
    }
  });
  say("ready");
  wait_for_byte();
  stop = true;
  truncating.join();
}
