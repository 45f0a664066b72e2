// A process that claims a command line of 64 GiB (prctl(2), PR_SET_MM_MAP).
#include <linux/prctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <cinttypes>

#include "target.hpp"

using namespace target;

// Returns the current values (proc_pid_stat(5), fields 26 to 28 and 45 to 51). The name before them
// contains no spaces.
static prctl_mm_map present() {
  prctl_mm_map map{};
  FILE* stat = fopen("/proc/self/stat", "r");
  CHECK(stat != nullptr);
  for (int field = 1; field <= 51; field++) {
    char word[64];
    CHECK(fscanf(stat, "%63s", word) == 1);
    uint64_t value = strtoull(word, nullptr, 10);
    if (field == 26) map.start_code = value;
    if (field == 27) map.end_code = value;
    if (field == 28) map.start_stack = value;
    if (field == 45) map.start_data = value;
    if (field == 46) map.end_data = value;
    if (field == 47) map.start_brk = value;
    if (field == 48) map.arg_start = value;
    if (field == 49) map.arg_end = value;
    if (field == 50) map.env_start = value;
    if (field == 51) map.env_end = value;
  }
  CHECK(fclose(stat) == 0);
  map.brk = reinterpret_cast<uint64_t>(sbrk(0));
  map.exe_fd = static_cast<uint32_t>(-1);
  return map;
}

int main() {
  constexpr size_t bytes = size_t{64} << 30;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* text = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  CHECK(text != MAP_FAILED);
  prctl_mm_map map = present();
  map.arg_start = reinterpret_cast<uint64_t>(text);
  map.arg_end = map.arg_start + bytes;
  say(prctl(PR_SET_MM, PR_SET_MM_MAP, &map, sizeof map, 0) == 0 ? "long" : "refused");
  ready();
  for (int i = 0; i < 10; i++) keep(malloc(123));
  done();
}
