// Loses blocks while other threads allocate and release theirs all the time.
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 3, SLOTS = 200 };
static void* slots[THREADS][SLOTS];
static atomic_int is_over;

static void say(const char* line) {
  if (write(1, line, strlen(line)) < 0) _exit(9);
}

static void wait_for_byte(void) {
  char byte;
  if (read(0, &byte, 1) < 0) _exit(9);
}

// Each block hangs in a slot, but for the moment in which a thread has it in hand.
static void* work(void* argument) {
  void** own = argument;
  uint32_t state = (uint32_t)(own - slots[0]) + 1;
  for (uint32_t round = 1; !is_over; round++) {
    state = state * 1664525 + 1013904223;
    void** slot = own + (state >> 16) % SLOTS;
    size_t bytes = round % 500 ? 16 + (state >> 8) % 3000 : 300000;
    if (round % 7 == 0) {
      void* longer = realloc(*slot, bytes);
      if (!longer) _exit(8);
      *slot = longer;
    } else {
      free(*slot);
      *slot = NULL;
      *slot = malloc(bytes);
      if (!*slot) _exit(8);
    }
    // Leaves some time to whoever traces.
    if (round % 50 == 0) usleep(100);
  }
  return NULL;
}

__attribute__((noinline)) static void leak_here(void) {
  for (int i = 0; i < 200; i++) {
    char* block = malloc(777);
    if (!block) _exit(7);
    memset(block, 0, 777);
    __asm__ volatile("" : : "r"(block) : "memory");
  }
}

// Remains of the loop in registers and on the stack keep nothing alive.
__attribute__((noinline)) static void scrub(void) {
  char room[4096];
  memset(room, 0, sizeof room);
  __asm__ volatile("" : : "r"(room) : "memory");
}

int main(void) {
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) {
    if (pthread_create(&threads[i], NULL, work, slots[i])) return 6;
  }
  say("ready\n");
  wait_for_byte();
  leak_here();
  scrub();
  say("done\n");
  wait_for_byte();
  is_over = 1;
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  return 0;
}
