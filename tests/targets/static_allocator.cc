// A program that contains its allocator if it is linked statically. It plants leaks along several
// call paths, in short-lived threads, in a child, and by the C library's own allocations. If the
// input starts with `f`, the program first forks another child, which allocates until it is killed.
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <new>

#include "target.hpp"

using namespace target;

#define APART [[gnu::noinline]] static

APART void leak_by_malloc() { keep(malloc(48)); }
APART void leak_by_calloc() { keep(calloc(3, 24)); }
APART void leak_by_realloc() { keep(realloc(malloc(16), 112)); }
APART void leak_by_posix_memalign() {
  void* block = nullptr;
  CHECK(posix_memalign(&block, 64, 128) == 0);
  keep(block);
}
APART void leak_by_strdup() { keep(strdup("twenty-three characters")); }
APART void leak_in_thread() { keep(malloc(40)); }
APART void leak_in_child() { keep(malloc(56)); }
APART void leak_by_new() { keep(new char[72]); }

static void allocate_and_release(size_t bytes) {
  void* block = malloc(bytes);
  keep(block);
  free(block);
}

static void* work(void* leaks) {
  for (size_t i = 0; i < 20; i++) allocate_and_release(i * 10);
  if (leaks) leak_in_thread();
  return nullptr;
}

// Keeps one thread constantly inside the allocator, so that the allocator is in use while threads
// are held.
static volatile bool is_over;
static void* be_busy(void*) {
  while (!is_over) allocate_and_release(100);
  return nullptr;
}

static volatile int caught;
static void handle(int) { caught = caught + 1; }

// An exception passes through redirected functions.
APART int throw_and_catch() {
  try {
    keep(new char[static_cast<size_t>(1) << 62]);
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}

int main(int count, char** arguments) {
  int threads = count > 1 ? atoi(arguments[1]) : 160;
  struct sigaction action = {};
  action.sa_handler = handle;
  CHECK(sigaction(SIGUSR1, &action, nullptr) == 0);
  pthread_t busy;
  CHECK(pthread_create(&busy, nullptr, be_busy, nullptr) == 0);
  say("ready");
  pid_t other = 0;
  char byte = 0;
  while (read(0, &byte, 1) == 1 && byte == 'f') {
    other = fork();
    CHECK(other >= 0);
    if (other == 0) CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    while (other == 0) {
      leak_in_child();
      usleep(1000);
    }
    char line[32];
    snprintf(line, sizeof line, "child %d", static_cast<int>(other));
    say(line);
  }
  for (int i = 0; i < 100; i++) leak_by_malloc();
  for (int i = 0; i < 90; i++) leak_by_calloc();
  for (int i = 0; i < 80; i++) leak_by_realloc();
  for (int i = 0; i < 70; i++) leak_by_posix_memalign();
  for (int i = 0; i < 60; i++) leak_by_strdup();
  for (int i = 0; i < 50; i++) leak_by_new();
  CHECK(throw_and_catch() == 1);
  pthread_t ids[16];
  for (int i = 0; i < threads; i += 16) {
    for (auto& id : ids) CHECK(pthread_create(&id, nullptr, work, i ? nullptr : ids) == 0);
    for (auto& id : ids) CHECK(pthread_join(id, nullptr) == 0);
  }
  CHECK(raise(SIGUSR1) == 0 && caught == 1);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    for (int i = 0; i < 10; i++) leak_in_child();
    _exit(5);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 5);
  if (other) CHECK(kill(other, 0) == 0 && kill(other, SIGKILL) == 0 && waitpid(other, &status, 0) == other);
  errno = 77;
  allocate_and_release(10);
  CHECK(errno == 77);
  is_over = true;
  CHECK(pthread_join(busy, nullptr) == 0);
  done();
  return 0;
}
