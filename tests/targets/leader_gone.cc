// A program whose initial thread exits by pthread_exit(3) while another thread continues.
//
//   at-once       the initial thread ends as soon as it can; the other thread has lost 40 blocks by
//                 the end
//   renamed       as `wait`; the process is called "chief", and the remaining threads "worker"
//   wait          the initial thread ends with the first byte of input; the other thread allocates
//                 all the time, and keeps 20 blocks from the second byte on. The third byte ends
//                 it.
#include <pthread.h>
#include <sys/prctl.h>

#include "target.hpp"

using namespace target;

static void* volatile kept[20];

__attribute__((noinline)) static void lose() {
  for (int i = 0; i < 40; i++) keep(malloc(1234));
}

__attribute__((noinline)) static void hold_some() {
  for (void* volatile& block : kept) block = malloc(765);
}

// Overwrites the remains of returned functions on the stack, which would be references to leaked
// blocks.
__attribute__((noinline)) static void scrub_stack() {
  volatile char frames[4096];
  for (size_t i = 0; i < sizeof frames; i++) frames[i] = 0;
}

static void* at_once(void*) {
  lose();
  scrub_stack();
  return nullptr;
}

static pthread_t initial;

static void* churn(void*) {
  for (;;) {
    void* block = malloc(100);
    keep(block);
    free(block);
    usleep(500);
  }
}

static void* work(void*) {
  pthread_join(initial, nullptr);
  say("gone");
  wait_for_byte();
  hold_some();
  say("done");
  wait_for_byte();
  _exit(0);
}

int main(int argc, char** argv) {
  initial = pthread_self();
  pthread_t other;
  if (argc > 1 && !strcmp(argv[1], "at-once")) {
    pthread_create(&other, nullptr, at_once, nullptr);
    pthread_exit(nullptr);
  }
  bool is_renamed = argc > 1 && !strcmp(argv[1], "renamed");
  if (is_renamed) prctl(PR_SET_NAME, "worker");
  pthread_create(&other, nullptr, churn, nullptr);
  say("ready");
  wait_for_byte();
  pthread_create(&other, nullptr, work, nullptr);
  if (is_renamed) prctl(PR_SET_NAME, "chief");
  pthread_exit(nullptr);
}
