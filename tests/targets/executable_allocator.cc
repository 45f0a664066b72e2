// A program with a built-in allocator, which the loader also calls: with a mutex (-DMUTEX), with a
// spin lock (-DSPIN), with a per-thread cache that is temporarily inconsistent (-DCACHE), or with a
// linked-in allocator.
#include <pthread.h>
#include <stdint.h>

#include <atomic>
#include <thread>

#include "usable.hpp"

using namespace target;

#if defined MUTEX || defined SPIN || defined CACHE
#define EXPORT extern "C" __attribute__((visibility("default"), noinline))

struct Block {
  size_t size;
  Block* next;
};

constexpr int CLASSES = 48;

static void linger() {
  for (int i = 0; i < 300; i++) asm volatile("pause");
}

#if defined MUTEX
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void enter() { pthread_mutex_lock(&mutex); }
static void leave() { pthread_mutex_unlock(&mutex); }
static Block* free_blocks[CLASSES];
#elif defined SPIN
static std::atomic_flag spin = ATOMIC_FLAG_INIT;
static void enter() {
  while (spin.test_and_set(std::memory_order_acquire)) asm volatile("pause");
}
static void leave() { spin.clear(std::memory_order_release); }
static Block* free_blocks[CLASSES];
#else
static void enter() {}
static void leave() {}
static thread_local __attribute__((tls_model("initial-exec"))) Block* free_blocks[CLASSES];
#endif

static std::atomic<uintptr_t> used;
alignas(4096) static unsigned char room[1u << 30];

static int class_of(size_t size) {
  int number = 0;
  while ((size_t{16} << number) < size) number++;
  return number;
}

EXPORT void* malloc(size_t size) {
  int number = class_of(size);
  enter();
  Block* block = free_blocks[number];
  if (block) {
    // A signal handler that interrupts this code and allocates gets this block a second time.
    Block* next = block->next;
    linger();
    free_blocks[number] = next;
  }
  leave();
  if (!block) {
    size_t bytes = (size_t{16} << number) + 16;
    uintptr_t at = used.fetch_add(bytes);
    if (at + bytes > sizeof room) abort();
    block = reinterpret_cast<Block*>(room + at);
  }
  block->size = number;
  return reinterpret_cast<char*>(block) + 16;
}

EXPORT void free(void* pointer) {
  if (!pointer) return;
  auto* block = reinterpret_cast<Block*>(static_cast<char*>(pointer) - 16);
  int number = static_cast<int>(block->size);
  if (number < 0 || number >= CLASSES) abort();
  // The memory of a block in use begins with its number; the memory of a free block does not.
  block->size = ~size_t{0};
  enter();
  block->next = free_blocks[number];
  linger();
  free_blocks[number] = block;
  leave();
}

EXPORT void* calloc(size_t count, size_t size) {
  void* block = malloc(count * size);
  memset(block, 0, count * size);
  return block;
}

EXPORT void* realloc(void* old, size_t size) {
  void* block = malloc(size);
  if (old) {
    size_t had = size_t{16} << reinterpret_cast<Block*>(static_cast<char*>(old) - 16)->size;
    memcpy(block, old, had < size ? had : size);
    free(old);
  }
  return block;
}

EXPORT void* memalign(size_t, size_t size) { return malloc(size); }
EXPORT void* aligned_alloc(size_t, size_t size) { return malloc(size); }
EXPORT int posix_memalign(void** to, size_t, size_t size) {
  *to = malloc(size);
  return 0;
}
#endif

int main() {
#if defined MUTEX || defined SPIN
  // A forked child inherits the lock in its current state.
  CHECK(pthread_atfork(enter, leave, leave) == 0);
#endif
  std::atomic<bool> ends = false;
  auto allocate = [&] {
    unsigned char* kept[64] = {};
    for (unsigned round = 0; !ends; round++) {
      unsigned char*& block = kept[round * 7 % 64];
      if (block) CHECK(*block == (round * 7 % 64));
      free(block);
      size_t size = 16 + round * 37 % 900;
      block = static_cast<unsigned char*>(malloc(size));
      memset(block, round * 7 % 64, size);
    }
    for (unsigned char* block : kept) free(block);
  };
  std::thread first(allocate), second(allocate);
  say("ready");
  serve();
  ends = true;
  first.join();
  second.join();
}
