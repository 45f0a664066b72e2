// A program that plants 600 blocks before an attach: leaked, reachable and released blocks of all sizes, from running
// and from exited threads. After that, N threads keep allocating and releasing, and also release each other's blocks.
// It compiles as C for musl, and as C++ through planted_heap.cc, with any allocator.
//
// Protocol: prints "ready" when all blocks are planted. The answer to each byte on standard input is the list: "leak
// ADDRESS BYTES", "live ADDRESS BYTES" and "free ADDRESS BYTES" (usable bytes at the time of the allocation), and
// "done". 'r' also means that leaked blocks are being reclaimed. At the end of input, the program checks all contents,
// and exits with code 0 if they are intact.
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 4096, SLOTS = 256, REACHABLE = 120, INTERIOR = 100, MOST_THREADS = 64 };

// The list contains no pointers: addresses are stored inverted.
static struct {
  uintptr_t disguised;
  size_t bytes;
  const char* state;
} planted[MOST];
static int planted_count;

struct node {
  struct node* next;
  long value;
};
static struct node* reachable;
static char* interior[INTERIOR];
static int errors;
static int is_reclaimed;

__attribute__((noinline)) static void note(void* block, const char* state) {
  int at = __atomic_fetch_add(&planted_count, 1, __ATOMIC_RELAXED);
  planted[at].disguised = ~(uintptr_t)block;
  planted[at].bytes = malloc_usable_size(block);
  planted[at].state = state;
}

// The stack used for planting must not keep the leaks alive.
__attribute__((noinline)) static void scrub_stack(void) {
  char room[32768];
  memset(room, 0, sizeof room);
  __asm__ volatile("" ::"r"(room) : "memory");
}

static size_t size_of(int i) { return 9 + (size_t)i * 37 % 1200 + (i % 10 == 0 ? 3000u : 0u); }

__attribute__((noinline)) static void plant_leaks(int count) {
  for (int i = 0; i < count; i++) {
    char* block = (char*)malloc(size_of(i));
    memset(block, 0, malloc_usable_size(block));
    note(block, "leak");
  }
  // A chain of leaks.
  struct node* head = NULL;
  for (int i = 0; i < 20; i++) {
    struct node* next = (struct node*)calloc(1, sizeof *next);
    next->next = head;
    next->value = 77;
    head = next;
    note(next, "leak");
  }
}

__attribute__((noinline)) static void plant_live(void) {
  for (int i = 0; i < REACHABLE; i++) {
    struct node* block = (struct node*)calloc(1, sizeof *block + size_of(i));
    block->value = 42;
    block->next = reachable;
    reachable = block;
    note(block, "live");
  }
  for (int i = 0; i < INTERIOR; i++) {
    char* block = (char*)calloc(1, 64 + size_of(i));
    block[0] = 42;
    interior[i] = block + 33;
    note(block, "live");
  }
}

// Released by the thread that allocated them, into its cache if there is one.
__attribute__((noinline)) static void plant_free(int count) {
  void* blocks[128];
  for (int i = 0; i < count; i++) {
    blocks[i] = calloc(1, size_of(i));
    note(blocks[i], "free");
  }
  for (int i = 0; i < count; i++) free(blocks[i]);
  memset(blocks, 0, sizeof blocks);
  __asm__ volatile("" ::"r"(blocks) : "memory");
}

// Large blocks, most of which have their own mapping; one third each is leaked, reachable and released.
__attribute__((noinline)) static void plant_large(void) {
  static const size_t sizes[] = {40000,   70000,   132000,   140000,   200000,  270000,  300000,
                                 600000,  1100000, 2500000,  5000000,  9000000, 17000000, 18000000,
                                 20000000, 33000000, 34000000, 40000000};
  for (int i = 0; i < (int)(sizeof sizes / sizeof *sizes); i++) {
    char* block = (char*)malloc(sizes[i]);
    memset(block, 0, sizeof(struct node));
    if (i % 3 == 0) {
      note(block, "leak");
    } else if (i % 3 == 1) {
      struct node* node = (struct node*)block;
      node->value = 42;
      node->next = reachable;
      reachable = node;
      note(block, "live");
    } else {
      note(block, "free");
      free(block);
    }
  }
}

static void* releases(void* list) {
  void** blocks = (void**)list;
  for (int i = 0; i < 80; i++) free(blocks[i]);
  return NULL;
}

static void* ends(void* unused) {
  (void)unused;
  plant_leaks(40);
  plant_free(22);
  scrub_stack();
  return NULL;
}

// These blocks are released by a different thread than the allocating thread.
__attribute__((noinline)) static void plant_released_elsewhere(void) {
  void* blocks[80];
  pthread_t thread;
  for (int i = 0; i < 80; i++) {
    blocks[i] = calloc(1, size_of(i));
    note(blocks[i], "free");
  }
  pthread_create(&thread, NULL, releases, blocks);
  pthread_join(thread, NULL);
  memset(blocks, 0, sizeof blocks);
  __asm__ volatile("" ::"r"(blocks) : "memory");
}

// Blocks that threads pass to each other; the second word of each is its size.
static struct node* passed[SLOTS];
static volatile int stopping;

static struct node* make(unsigned* seed) {
  *seed = *seed * 1103515245u + 12345u;
  size_t bytes = sizeof(struct node) + *seed / 65536 % (*seed % 61 == 0 ? 60000u : 900u);
  struct node* block = (struct node*)calloc(1, bytes);
  block->value = (long)(bytes << 8 | 0x5a);
  ((unsigned char*)block)[bytes - 1] |= bytes > sizeof *block ? 0x5a : 0;
  return block;
}

static void drop(struct node* block) {
  size_t bytes = (size_t)block->value >> 8;
  int is_whole = (block->value & 0xff) == 0x5a && block->next == NULL &&
                 (bytes == sizeof *block || ((unsigned char*)block)[bytes - 1] == 0x5a);
  if (!is_whole) __atomic_store_n(&errors, 1, __ATOMIC_RELAXED);
  free(block);
}

static void* mutates(void* argument) {
  unsigned seed = (unsigned)(uintptr_t)argument * 7919u + 1;
  struct node* own[64] = {NULL};
  for (unsigned round = 1; !stopping; round++) {
    // Tests run in parallel, so usually only one of the threads is in the allocator.
    if (round % 64 == 0) usleep(300);
    seed = seed * 1103515245u + 12345u;
    unsigned at = seed / 65536;
    struct node** slot = &own[at % 64];
    if (at % 4 == 0) {
      // Exchanges one of its blocks for a block of another thread.
      *slot = __atomic_exchange_n(&passed[at / 64 % SLOTS], *slot, __ATOMIC_ACQ_REL);
    } else if (*slot) {
      struct node* block = *slot;
      drop(block);
      *slot = NULL;
    } else {
      *slot = make(&seed);
    }
  }
  for (int i = 0; i < 64; i++) {
    if (own[i]) drop(own[i]);
  }
  return NULL;
}

static void say(const char* text) {
  if (write(1, text, strlen(text)) < 0) _exit(1);
}

__attribute__((noinline)) static void list(void) {
  char line[128];
  for (int i = 0; i < planted_count; i++) {
    snprintf(line, sizeof line, "%s %#lx %zu\n", planted[i].state,
             (unsigned long)~planted[i].disguised, planted[i].bytes);
    say(line);
  }
  say("done\n");
  memset(line, 0, sizeof line);
  __asm__ volatile("" ::"r"(line) : "memory");
}

// Returns true if all unreleased planted blocks are intact.
__attribute__((noinline)) static int is_sound(void) {
  int count = 0;
  for (struct node* node = reachable; node; node = node->next) count += node->value == 42;
  for (int i = 0; i < INTERIOR; i++) count += interior[i][-33] == 42;
  for (int i = 0; i < planted_count; i++) {
    const char* block = (const char*)~planted[i].disguised;
    if (planted[i].state[0] == 'f' || (is_reclaimed && planted[i].state[1] == 'e')) continue;
    if (malloc_usable_size((void*)block) != planted[i].bytes) return 0;
  }
  return count == REACHABLE + INTERIOR + 6;
}

int main(int argc, char** argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 4;
  pthread_t ids[MOST_THREADS];
  if (threads > MOST_THREADS) return 1;
  plant_leaks(100);
  plant_live();
  plant_large();
  plant_free(80);
  plant_released_elsewhere();
  pthread_create(&ids[0], NULL, ends, NULL);
  pthread_join(ids[0], NULL);
  for (int i = 0; i < threads; i++) {
    pthread_create(&ids[i], NULL, mutates, (void*)(uintptr_t)(i + 1));
  }
  scrub_stack();
  say("ready\n");
  char c;
  while (read(0, &c, 1) == 1) {
    is_reclaimed |= c == 'r';
    list();
    scrub_stack();
  }
  stopping = 1;
  for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
  for (int i = 0; i < SLOTS; i++) {
    if (passed[i]) drop(passed[i]);
  }
  return errors == 0 && is_sound() ? 0 : 2;
}
