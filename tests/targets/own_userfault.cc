// Uses userfaultfd(2) itself, as selected by argument 1:
//   hears    registers memory with a descriptor that reports forks; a thread reads the reports, but
//            never those of the children
//   begins   at the first byte, opens a descriptor, and registers shared memory and memory that it
//            maps then; at the second byte, registers private memory that it had from the start;
//            finally closes the descriptor
// If it may not use userfaultfd, the program prints "refused" instead of "ready".
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

static void register_area(int userfault, void* area) {
  uffdio_register request{};
  request.range = {reinterpret_cast<uint64_t>(area), area_bytes};
  request.mode = UFFDIO_REGISTER_MODE_MISSING;
  CHECK(ioctl(userfault, UFFDIO_REGISTER, &request) == 0);
}

static void register_areas(int userfault) {
  for (char* area : areas) register_area(userfault, area);
}

static void* map_area(int sharing) {
  void* area = mmap(nullptr, area_bytes, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS, -1, 0);
  CHECK(area != MAP_FAILED);
  return area;
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
    void* shared = map_area(MAP_SHARED);
    ready();
    userfault = open_userfault(0);
    register_area(userfault, shared);
    register_area(userfault, map_area(MAP_PRIVATE));
    say("begun");
    wait_for_byte();
    register_areas(userfault);
    say("registered");
    wait_for_byte();
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
