// A C program for musl: leaks planted along several paths to the allocator, in thousands of short-lived
// threads, in a library that is opened late, and in a constructor. With CLEAN it releases everything that
// it planted.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                     \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);      \
      _exit(7);                                                                              \
    }                                                                                        \
  } while (0)

#define APART __attribute__((noinline))

static void say(const char* line) {
  if (write(1, line, strlen(line)) < 0) _exit(9);
}

static void wait_for_byte(void) {
  char byte;
  while (read(0, &byte, 1) < 0 && errno == EINTR) {
  }
}

static void keep(void* block) {
  __asm__ volatile("" : : "r"(block) : "memory");
#ifdef CLEAN
  free(block);
#endif
}

// Prevents the compiler from omitting the calls.
static void allocate_and_release(size_t bytes) {
  void* block = malloc(bytes);
  __asm__ volatile("" : : "r"(block) : "memory");
  free(block);
}

APART static void leak_by_malloc(void) { keep(malloc(48)); }
APART static void leak_by_calloc(void) { keep(calloc(3, 24)); }
APART static void leak_by_realloc(void) { keep(realloc(malloc(16), 112)); }
APART static void leak_by_aligned_alloc(void) { keep(aligned_alloc(64, 128)); }
APART static void leak_by_strdup(void) { keep(strdup("twenty-three characters")); }
APART static void leak_in_thread(void) { keep(malloc(40)); }
APART static void leak_in_constructor(void) { keep(malloc(200)); }

__attribute__((constructor)) static void construct(void) {
  for (int i = 0; i < 3; i++) leak_in_constructor();
}

static void* work(void* leaks) {
  for (int i = 0; i < 20; i++) allocate_and_release((size_t)i * 10);
  if (leaks) leak_in_thread();
  return NULL;
}

static void run_threads(int count) {
  pthread_t ids[16];
  for (int i = 0; i < count; i += 16) {
    for (int j = 0; j < 16; j++)
      CHECK(pthread_create(&ids[j], NULL, work, (i + j) % 100 == 0 ? ids : NULL) == 0);
    for (int j = 0; j < 16; j++) CHECK(pthread_join(ids[j], NULL) == 0);
  }
}

// Reachable from a global, so it is not a leak.
static void* reachable;

int main(int count, char** arguments) {
  int threads = count > 1 ? atoi(arguments[1]) : 10000;
  say("ready\n");
  wait_for_byte();
  for (int i = 0; i < 100; i++) leak_by_malloc();
  for (int i = 0; i < 90; i++) leak_by_calloc();
  for (int i = 0; i < 80; i++) leak_by_realloc();
  for (int i = 0; i < 70; i++) leak_by_aligned_alloc();
  for (int i = 0; i < 60; i++) leak_by_strdup();
  reachable = malloc(1000);
  run_threads(threads);
  if (count > 2) {
    void* library = dlopen(arguments[2], RTLD_NOW);
    CHECK(library);
    void (*leak)(void) = (void (*)(void))(uintptr_t)dlsym(library, "leak_in_library");
    CHECK(leak);
    for (int i = 0; i < 50; i++) leak();
    CHECK(!dlopen("/nonexistent.so", RTLD_NOW));
  }
  errno = 77;
  allocate_and_release(10);
  CHECK(errno == 77);
  say("done\n");
  wait_for_byte();
  CHECK(reachable);
  return 0;
}
