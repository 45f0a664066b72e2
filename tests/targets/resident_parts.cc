// A program whose resident memory consists of known amounts: live blocks, free blocks, stacks of
// named threads, private mappings, shared memory, pages of a file, huge pages. Argument: a file of
// 3 MiB that it maps.
//
// Protocol: prints "ready" when everything is mapped, then waits for the end of the input.
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>

#include <cstdint>
#include <vector>

#include "target.hpp"

namespace {

constexpr size_t mib = 1 << 20;
constexpr int workers = 3;
pthread_barrier_t planted;
std::vector<void*> kept[workers + 1];

__attribute__((noinline)) void plant(std::vector<void*>& into, size_t bytes, size_t size) {
  into.reserve(bytes / size + 1);
  for (size_t done = 0; done < bytes; done += size) {
    void* block = malloc(size);
    CHECK(block);
    memset(block, 1, size);
    into.push_back(block);
  }
}

__attribute__((noinline)) void touch_stack() {
  volatile char room[mib];
  for (size_t at = 0; at < sizeof room; at += 4096) room[at] = 1;
}

void* work(void* argument) {
  plant(kept[reinterpret_cast<intptr_t>(argument)], 2 * mib, 1000);
  touch_stack();
  pthread_barrier_wait(&planted);
  for (;;) pause();
}

char* map(size_t bytes, int flags, int file) {
  void* place = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
  CHECK(place != MAP_FAILED);
  return static_cast<char*>(place);
}

}  // namespace

int main(int count, char** arguments) {
  CHECK(count == 2);
  // The main arena: 4 MiB of live blocks, and another 4 MiB, of which every fourth block stays.
  plant(kept[0], 4 * mib, 1000);
  std::vector<void*> sparse;
  plant(sparse, 4 * mib, 500);
  for (size_t i = 0; i < sparse.size(); ++i)
    if (i % 4) free(sparse[i]);
  // A block with a separate mapping.
  memset(malloc(8 * mib), 1, 8 * mib);

  pthread_barrier_init(&planted, nullptr, workers + 1);
  for (intptr_t i = 1; i <= workers; ++i) {
    pthread_t thread;
    CHECK(pthread_create(&thread, nullptr, work, reinterpret_cast<void*>(i)) == 0);
    char name[16];
    snprintf(name, sizeof name, "worker-%d", static_cast<int>(i));
    pthread_setname_np(thread, name);
  }
  pthread_barrier_wait(&planted);

  memset(map(6 * mib, MAP_PRIVATE | MAP_ANONYMOUS, -1), 1, 6 * mib);
  memset(map(5 * mib, MAP_SHARED | MAP_ANONYMOUS, -1), 1, 5 * mib);
  // Read but never written, so these pages are not resident.
  volatile char* zeros = map(7 * mib, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  for (size_t at = 0; at < 7 * mib; at += 4096) (void)zeros[at];
  int file = open(arguments[1], O_RDWR);
  CHECK(file >= 0);
  volatile char* mapped = map(3 * mib, MAP_SHARED, file);
  for (size_t at = 0; at < 3 * mib; at += 4096) mapped[at] = 1;
  char* huge = map(8 * mib, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  huge += -reinterpret_cast<uintptr_t>(huge) % (2 * mib);
  madvise(huge, 4 * mib, MADV_HUGEPAGE);
  memset(huge, 1, 4 * mib);
  target::ready();
  return 0;
}
