// Maps memory that looks like an attacher's region, and removes its pages constantly.
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <atomic>
#include <thread>

#include "../../hook-cxx/abi.hpp"
#include "target.hpp"

using namespace target;
using namespace memhook::abi;

int main() {
  // The mapping has the layout of a region with the usual ring size. Without a control block it
  // looks like the region of an attacher that was killed early.
  long bytes = static_cast<long>(rings_offset + max_rings * (ring_prefix_bytes + (1 << 20)));
  int fd = memfd_create("memhook-region", MFD_ALLOW_SEALING);
  CHECK(fd >= 0 && ftruncate(fd, bytes) == 0);
  void* map = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_NORESERVE, fd, 0);
  CHECK(map != MAP_FAILED);
  // Another process holds the descriptor, because in the target the tracer would close a descriptor
  // with this name as a leftover.
  int parent = getpid();
  if (fork() == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (getppid() == parent) {
      CHECK(ftruncate(fd, 0) == 0);
      usleep(300);
      CHECK(ftruncate(fd, bytes) == 0);
      usleep(100);
    }
    _exit(0);
  }
  CHECK(close(fd) == 0);
  std::atomic<bool> stop{false};
  std::thread working([&] {
    while (!stop) free(malloc(100));
  });
  say("ready");
  wait_for_byte();
  stop = true;
  working.join();
}
