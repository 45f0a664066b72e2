// A program that hides the addresses of blocks, so that they look leaked, and frees some of them on request: in the
// thread that allocated them, in another thread, in a new thread, and in a thread that exits. As far as possible,
// freeing a block leaves its contents unchanged: its first word is already the address of the previously freed block,
// which allocators with free lists write there; with the argument "fast", it is the word of glibc's fast lists, as in a
// block that was taken from such a list and never written to.
//
// Protocol: "ready"; then one command per line. "p" allocates BLOCKS new blocks. "m", "w", "n" and "e" free the next
// FREED blocks in the initial thread, a waiting thread, a new thread, and a new thread that exits, and print "freed
// ADDRESS" for each. "c" makes all threads allocate blocks of all sizes, and prints "twice N", the number of blocks
// that were handed out twice. "done" ends each answer.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif

enum { BLOCKS = 300, FREED = 25, SIZES = 5, MOST_THREADS = 64, AGAIN = 400 };
static const size_t sizes[SIZES] = {48, 200, 700, 2000, 20000};

static int is_fast;

// Inverted.
static uintptr_t hidden[BLOCKS];
static int next_freed;

// Blocks allocated to each thread.
static uintptr_t given[MOST_THREADS * SIZES * AGAIN];
static int given_count;

struct thread {
  pthread_t id;
  int commands[2], answers[2];
};
static struct thread threads[MOST_THREADS];
static int thread_count;

static void say(const char* text) {
  if (write(1, text, strlen(text)) < 0) _exit(1);
}

// The stack used for planting must not keep the leaks alive.
__attribute__((noinline)) static void scrub_stack(void) {
  char room[32768];
  memset(room, 0, sizeof room);
  __asm__ volatile("" ::"r"(room) : "memory");
}

// The value that free() writes to the next block in a fast list: the address of its header, since 2.32 mangled with the
// address of the link (malloc.c, PROTECT_PTR).
static uintptr_t fast_link(uintptr_t before, const uintptr_t* place) {
  uintptr_t link = before ? before - 16 : 0;
#ifdef __GLIBC__
  if (atoi(strchr(gnu_get_libc_version(), '.') + 1) >= 32) link ^= (uintptr_t)place >> 12;
#endif
  return link;
}

__attribute__((noinline)) static void plant(void) {
  for (int i = 0; i < BLOCKS; i++) {
    size_t bytes = sizes[i % SIZES];
    uintptr_t* block = (uintptr_t*)malloc(bytes);
    memset(block, 0, bytes);
    block[0] = i < SIZES ? 0 : ~hidden[i - SIZES];
    if (is_fast) block[0] = fast_link(block[0], block);
    hidden[i] = ~(uintptr_t)block;
  }
  next_freed = 0;
}

__attribute__((noinline)) static void free_some(void) {
  for (int i = 0; i < FREED; i++) free((void*)~hidden[next_freed + i]);
}

__attribute__((noinline)) static void take_some(void) {
  for (int i = 0; i < SIZES * AGAIN; i++) {
    given[given_count++] = ~(uintptr_t)malloc(sizes[i % SIZES]);
  }
}

static void obey(char command) {
  // The thread may then have a cache.
  if (command == 'a') free(malloc(sizes[0]));
  if (command == 'f') free_some();
  if (command == 't') take_some();
  scrub_stack();
}

static void* wait_for_commands(void* argument) {
  struct thread* thread = (struct thread*)argument;
  char command;
  while (read(thread->commands[0], &command, 1) == 1) {
    obey(command);
    if (write(thread->answers[1], &command, 1) != 1) _exit(1);
  }
  return NULL;
}

static void* frees_and_ends(void* unused) {
  obey('f');
  return unused;
}

static void tell(struct thread* thread, char command) {
  int failed = write(thread->commands[1], &command, 1) != 1 ||
               read(thread->answers[0], &command, 1) != 1;
  if (failed) _exit(1);
}

static struct thread* start(void) {
  struct thread* thread = &threads[thread_count++];
  if (thread_count > MOST_THREADS || pipe(thread->commands) || pipe(thread->answers)) _exit(1);
  if (pthread_create(&thread->id, NULL, wait_for_commands, thread)) _exit(1);
  return thread;
}

static int compare(const void* one, const void* other) {
  uintptr_t a = *(const uintptr_t*)one, b = *(const uintptr_t*)other;
  return a < b ? -1 : a > b;
}

__attribute__((noinline)) static void check(void) {
  int twice = 0;
  char line[64];
  obey('t');
  for (int i = 0; i < thread_count; i++) tell(&threads[i], 't');
  qsort(given, (size_t)given_count, sizeof *given, compare);
  for (int i = 1; i < given_count; i++) twice += given[i] == given[i - 1];
  snprintf(line, sizeof line, "twice %d\n", twice);
  say(line);
}

__attribute__((noinline)) static void list_freed(void) {
  char line[64];
  for (int i = 0; i < FREED; i++, next_freed++) {
    snprintf(line, sizeof line, "freed %#lx\n", (unsigned long)~hidden[next_freed]);
    say(line);
  }
}

int main(int argc, char** argv) {
  char command;
  pthread_t ending;
  is_fast = argc > 1 && strcmp(argv[1], "fast") == 0;
  struct thread* worker = start();
  tell(worker, 'a');
  say("ready\n");
  while (read(0, &command, 1) == 1) {
    switch (command) {
      case 'p': plant(); break;
      case 'm': obey('f'); break;
      case 'w': tell(worker, 'f'); break;
      case 'n': tell(start(), 'f'); break;
      case 'e':
        if (pthread_create(&ending, NULL, frees_and_ends, NULL)) _exit(1);
        pthread_join(ending, NULL);
        break;
      case 'c': check(); break;
      default: continue;
    }
    if (command != 'p' && command != 'c') list_freed();
    scrub_stack();
    say("done\n");
  }
  return 0;
}
