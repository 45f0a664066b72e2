// A program that maps known amounts in every way, while another thread allocates. With -DLIBRARY,
// an allocator that obtains its memory by mmap through a slot; its mappings count as its heap.
//
// Protocol: see target.hpp. The self-check verifies the results and errno of the calls.
#include <csignal>
#include <cstdint>
#include <pthread.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "target.hpp"

constexpr size_t page = 4096;

#ifdef LIBRARY

static char* room;
static size_t left;

extern "C" __attribute__((visibility("default"))) void* malloc(size_t size) {
  size = (size + 15) & ~size_t{15};
  if (left < size) {
    left = 1 << 20;
    room = static_cast<char*>(
        mmap(nullptr, left, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  left -= size;
  char* block = room;
  room += size;
  return block;
}

extern "C" __attribute__((visibility("default"))) void free(void*) {}

#else

namespace {

__attribute__((always_inline)) inline char* map(size_t pages, int flags = 0, void* hint = nullptr) {
  errno = 77;
  void* at = mmap(hint, pages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  CHECK(at != MAP_FAILED && errno == 77);
  memset(at, 1, pages * page);
  return static_cast<char*>(at);
}

#define PLANT __attribute__((noinline)) void

// Failed calls do not count.
PLANT plant_failures() {
  errno = 0;
  CHECK(mmap(nullptr, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == EINVAL);
  char* at = map(2);
  errno = 0;
  CHECK(munmap(at + 1, page) == -1 && errno == EINVAL);
  errno = 0;
  CHECK(mremap(at + 1, page, 3 * page, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
  errno = 0;
  CHECK(shmat(-1, nullptr, 0) == reinterpret_cast<void*>(-1) && errno == EINVAL);
  errno = 0;
  CHECK(shmdt(at + 1) == -1 && errno == EINVAL);
  errno = 0;
  CHECK(madvise(at + 1, page, MADV_DONTNEED) == -1 && errno == EINVAL);
  errno = 5;
  CHECK(munmap(at, 2 * page) == 0 && errno == 5);
}

PLANT plant_plain() {
  for (int i = 0; i < 3; ++i) map(5);
  // The kernel rounds a length up to pages, and so does memhook-rs.
  CHECK(mmap64(nullptr, 100, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
}

PLANT plant_cut() {
  char* at = map(16);
  CHECK(munmap(at + 4 * page, 3 * page) == 0);
  CHECK(madvise(at, 2 * page, MADV_DONTNEED) == 0 && at[0] == 0);
  CHECK(madvise(at, 1 * page, MADV_WILLNEED) == 0);
}

// Unmaps several mappings, and the gaps between them, in one call.
PLANT plant_swept() {
  char* at = map(30);
  CHECK(munmap(at, 30 * page) == 0);
  map(4, MAP_FIXED, at);
  map(4, MAP_FIXED, at + 10 * page);
  map(4, MAP_FIXED, at + 20 * page);
  CHECK(munmap(at + 2 * page, 19 * page) == 0);
}

PLANT plant_grown() {
  char* at = map(4);
  void* more = mremap(at, 4 * page, 64 * page, MREMAP_MAYMOVE);
  CHECK(more != MAP_FAILED && static_cast<char*>(more)[0] == 1);
}

PLANT plant_part_moved() {
  char* at = map(10);
  char* place = map(6);
  // Moves onto another mapping and thus unmaps it; the last parameter is its address.
  void* moved = mremap(at + 3 * page, 2 * page, 6 * page, MREMAP_MAYMOVE | MREMAP_FIXED, place);
  CHECK(moved == place && place[0] == 1);
}

PLANT plant_replaced() {
  char* at = map(10);
  map(2, MAP_FIXED, at + 2 * page);
}

PLANT plant_break() {
  void* before = sbrk(0);
  errno = 3;
  char* at = static_cast<char*>(sbrk(9 * page));
  CHECK(at == before && errno == 3 && sbrk(0) == at + 9 * page);
  at[9 * page - 1] = 1;
  CHECK(brk(at + 7 * page) == 0 && sbrk(0) == at + 7 * page);
}

PLANT plant_segments() {
  int id = shmget(IPC_PRIVATE, 3 * page - 1, IPC_CREAT | 0600);
  CHECK(id != -1);
  void* kept = shmat(id, nullptr, 0);
  void* gone = shmat(id, nullptr, 0);
  CHECK(kept != reinterpret_cast<void*>(-1) && gone != kept);
  CHECK(shmdt(gone) == 0);
  CHECK(shmctl(id, IPC_RMID, nullptr) == 0);
}

PLANT plant_in_handler() { map(2); }

void on_signal(int) { plant_in_handler(); }

void* of_thread;

PLANT plant_in_thread() { of_thread = map(6); }

void* thread(void*) {
  plant_in_thread();
  return nullptr;
}

volatile bool is_over;

void* allocate(void*) {
  while (!is_over) {
    void* block = malloc(100);
    target::keep(block);
    free(block);
  }
  return nullptr;
}

// Maps without the slots, so that only /proc shows it.
PLANT plant_unseen() {
  long at = syscall(SYS_mmap, nullptr, 4096 * page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(at > 0);
  char* gone = map(1024);
  CHECK(syscall(SYS_munmap, gone, 1024 * page) == 0);
}

char* before;

}  // namespace

int main() {
  before = map(32);
  pthread_t busy, other;
  target::ready();
  CHECK(pthread_create(&busy, nullptr, allocate, nullptr) == 0);
  plant_failures();
  plant_plain();
  plant_cut();
  plant_swept();
  plant_grown();
  plant_part_moved();
  plant_replaced();
  plant_break();
  plant_segments();
  signal(SIGUSR1, on_signal);
  raise(SIGUSR1);
  CHECK(pthread_create(&other, nullptr, thread, nullptr) == 0);
  CHECK(pthread_join(other, nullptr) == 0);
  CHECK(munmap(of_thread, page) == 0);
  // Mappings of a child do not count for its parent.
  pid_t child = fork();
  if (child == 0) {
    map(77);
    munmap(before, 32 * page);
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  plant_unseen();
  // Mapped before the attach.
  CHECK(munmap(before, 2 * page) == 0);
  is_over = true;
  CHECK(pthread_join(busy, nullptr) == 0);
  target::done();
}

#endif
