// Mappings with pages in all states that a scan of page tables must distinguish: written, never
// touched, only read, returned to the system, in huge pages, copied from a file, inaccessible.
//
// Protocol: prints "ready" when everything is mapped, then waits for the end of the input.
#include <fcntl.h>
#include <sys/mman.h>

#include <cstdint>
#include <initializer_list>

#include "target.hpp"

namespace {

constexpr size_t mib = 1 << 20, page = 4096;

// Maps memory that the kernel cannot merge with a neighbouring mapping.
char* map(size_t bytes) {
  void* room = mmap(nullptr, bytes + 4 * mib, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(room != MAP_FAILED);
  auto at = reinterpret_cast<uintptr_t>(room) + mib;
  at += -at % (2 * mib);
  auto* place = reinterpret_cast<char*>(at);
  CHECK(mprotect(place, bytes, PROT_READ | PROT_WRITE) == 0);
  return place;
}

void read_all(const volatile char* place, size_t bytes) {
  for (size_t at = 0; at < bytes; at += page) (void)place[at];
}

// Maps memory and writes every other page; `pages` is the number of written pages.
void plant_apart(size_t pages) {
  char* place = map(2 * pages * page);
  CHECK(madvise(place, 2 * pages * page, MADV_NOHUGEPAGE) == 0);
  for (size_t i = 0; i < pages; ++i) place[2 * i * page] = 1;
}

}  // namespace

int main() {
  // PAGEMAP_SCAN returns up to 512 regions per call.
  for (size_t pages : {300, 800, 1023, 1024, 1025, 1900, 2600}) plant_apart(pages);
  map(4 * mib);
  read_all(map(4 * mib), 4 * mib);
  char* huge_zeros = map(4 * mib);
  madvise(huge_zeros, 4 * mib, MADV_HUGEPAGE);
  read_all(huge_zeros, 4 * mib);
  char* huge = map(4 * mib);
  madvise(huge, 4 * mib, MADV_HUGEPAGE);
  memset(huge, 1, 4 * mib);
  char* split = map(4 * mib);
  madvise(split, 4 * mib, MADV_HUGEPAGE);
  memset(split, 1, 4 * mib);
  for (size_t at = 0; at < 3 * mib; at += 3 * page) CHECK(madvise(split + at, page, MADV_DONTNEED) == 0);
  char* closed = map(2 * mib);
  memset(closed, 1, 2 * mib);
  CHECK(mprotect(closed, 2 * mib, PROT_NONE) == 0);
  int file = open("/proc/self/exe", O_RDONLY);
  CHECK(file >= 0);
  auto* copied = static_cast<char*>(mmap(nullptr, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0));
  CHECK(copied != MAP_FAILED);
  read_all(copied, 4 * page);
  copied[page] = 1;
  target::ready();
  return 0;
}
