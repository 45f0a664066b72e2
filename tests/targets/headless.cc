// A program whose initial thread has exited. The other thread holds every second of 20 blocks.
#include <pthread.h>

#include "target.hpp"

using namespace target;

static void* volatile kept[20];
static pthread_t initial;

__attribute__((noinline)) static void allocate() {
  for (int i = 0; i < 20; i++) {
    void* block = calloc(1, 700);
    if (i % 2) kept[i] = block;
    keep(block);
  }
}

// Overwrites the remains of returned functions on the stack, which would be references to leaked
// blocks.
__attribute__((noinline)) static void scrub_stack() {
  volatile char frames[4096];
  for (size_t i = 0; i < sizeof frames; i++) frames[i] = 0;
}

static void* work(void*) {
  pthread_join(initial, nullptr);
  allocate();
  scrub_stack();
  say("ready");
  wait_for_byte();
  _exit(0);
}

int main() {
  initial = pthread_self();
  pthread_t other;
  pthread_create(&other, nullptr, work, nullptr);
  pthread_exit(nullptr);
}
