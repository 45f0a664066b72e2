#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// The result of a thread, which belongs to the program that joins it.
__attribute__((noinline)) static char* make_result(void) {
  char* block = malloc(777);
  if (block == NULL) _exit(7);
  memset(block, 1, 777);
  return block;
}

static void* work(void* unused) {
  (void)unused;
  // Most of the stack, even of musl's 128 KiB.
  volatile char deep[100000];
  for (size_t i = 0; i < sizeof deep; i += 512) deep[i] = 1;
  return make_result();
}

static void say(const char* line, size_t length) {
  if (write(1, line, length) != (ssize_t)length) _exit(9);
}

static void wait_for_byte(void) {
  char byte;
  if (read(0, &byte, 1) < 0) _exit(5);
}

// Waits until the kernel lists only the initial thread.
static void wait_for_threads(void) {
  struct stat tasks;
  do {
    usleep(1000);
    // A directory has a link for each subdirectory.
    if (stat("/proc/self/task", &tasks) != 0) _exit(6);
  } while (tasks.st_nlink > 3);
}

int main(void) {
  // A static program on musl that releases nothing has another, simpler allocator.
  free(make_result());
  say("ready\n", 6);
  wait_for_byte();
  for (int i = 0; i < 300; i++) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, NULL) != 0) _exit(8);
  }
  wait_for_threads();
  say("done\n", 5);
  wait_for_byte();
  return 0;
}
