// Uses userfaultfd(2) itself, by argument 1:
//   hears    memory whose descriptor hears of forks; a thread reads of them, and never of those of the children
//   begins   has mapped memory, and registers it when it is told so, keeps it so until the next byte, and gives it back
// Without the right to use it, it says "refused" in place of "ready".
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <string>
#include <thread>

#include "target.hpp"

using namespace target;

constexpr int area_count = 64;
constexpr size_t area_bytes = 1 << 20;
static char* areas[area_count];

static int open_userfault(uint64_t features) {
  int userfault = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC));
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = features;
  if (userfault < 0 || ioctl(userfault, UFFDIO_API, &api) != 0) {
    say("refused");
    _exit(0);
  }
  return userfault;
}

static void register_areas(int userfault) {
  for (char* area : areas) {
    uffdio_register request{};
    request.range = {reinterpret_cast<uint64_t>(area), area_bytes};
    request.mode = UFFDIO_REGISTER_MODE_MISSING;
    CHECK(ioctl(userfault, UFFDIO_REGISTER, &request) == 0);
  }
}

static void unregister_areas(int userfault) {
  for (char* area : areas) {
    uffdio_range range{reinterpret_cast<uint64_t>(area), area_bytes};
    CHECK(ioctl(userfault, UFFDIO_UNREGISTER, &range) == 0);
  }
}

int main(int, char** arguments) {
  bool hears = std::string(arguments[1]) == "hears";
  for (char*& area : areas) {
    void* guarded = mmap(nullptr, area_bytes + 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(guarded != MAP_FAILED);
    area = static_cast<char*>(guarded) + 4096;
    CHECK(mprotect(area, area_bytes, PROT_READ | PROT_WRITE) == 0);
    area[0] = 1;
  }
  int userfault = open_userfault(hears ? UFFD_FEATURE_EVENT_FORK : 0);
  if (!hears) {
    close(userfault);
    ready();
    for (int i = 0; i < 200; i++) keep(malloc(100));
    say("allocated");
    wait_for_byte();
    userfault = open_userfault(0);
    register_areas(userfault);
    say("registered");
    wait_for_byte();
    unregister_areas(userfault);
    close(userfault);
    done();
    return 0;
  }
  register_areas(userfault);
  std::thread([userfault] {
    uffd_msg message;
    while (read(userfault, &message, sizeof message) == sizeof message) {
    }
  }).detach();
  ready();
  keep(malloc(100));
  done();
  _exit(0);
}
