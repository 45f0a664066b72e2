// A program that plants 600 blocks and keeps allocating in threads, for allocators whose heap
// consists of regions of size classes. Protocol: prints "ready" when all blocks are planted.
// Repeats the list for each byte on stdin. At the end of input, checks its reachable blocks and
// exits.
//
// It prints one line for each planted block: "leak ADDRESS BYTES" or "live ADDRESS BYTES", and
// "free ADDRESS 0" for freed blocks, inside or outside a thread's cache. The list is in mapped
// memory, with disguised addresses.
//
// Arguments: number of threads that keep allocating, and number of threads that plant blocks and
// exit.
#include <malloc.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

enum Kind { LEAKED, LIVE, FREED };
struct Planted {
  uintptr_t disguised;
  size_t bytes;
  Kind kind;
};
static Planted planted[4096];
static int planted_count;

__attribute__((noinline)) static void note(void* block, Kind kind) {
  planted[planted_count++] = {~reinterpret_cast<uintptr_t>(block),
                              kind == FREED ? 0 : malloc_usable_size(block), kind};
}

struct Node {
  Node* next;
  long value;
};

static Node* reachable;
static char* interior[50];
static void* held_large[10];
static thread_local void* volatile in_tls;

// The stack and registers used for planting must not keep the leaks alive.
__attribute__((noinline)) static void scrub_stack() {
  char room[65536];
  memset(room, 0, sizeof room);
  asm volatile("" ::"r"(room) : "memory");
}

// Returns a zeroed block, because its previous contents may point to other blocks.
__attribute__((noinline)) static void* zeros(size_t bytes) {
  void* block = malloc(bytes);
  memset(block, 0, malloc_usable_size(block));
  return block;
}

// 200 leaked blocks of many size classes, 20 of them in a chain, and 10 large blocks.
__attribute__((noinline)) static void plant_leaked() {
  for (int i = 0; i < 170; i++) note(zeros(8 + i * 23 % 4000), LEAKED);
  Node* head = nullptr;
  for (int i = 0; i < 20; i++) {
    auto* node = static_cast<Node*>(zeros(sizeof(Node) + i * 16));
    node->next = head;
    head = node;
    note(node, LEAKED);
  }
  for (int i = 0; i < 10; i++) note(zeros(20000 + i * 50000), LEAKED);
}

// 200 reachable blocks: in a list, reachable only through interior pointers, and large blocks.
__attribute__((noinline)) static void plant_live() {
  for (int i = 0; i < 139; i++) {
    auto* node = static_cast<Node*>(zeros(sizeof(Node) + i * 29 % 3000));
    node->next = reachable;
    node->value = 7;
    reachable = node;
    note(node, LIVE);
  }
  for (int i = 0; i < 50; i++) {
    auto* block = static_cast<char*>(zeros(64 + i * 50));
    block[13 + i] = 7;
    interior[i] = block + 13 + i;
    note(block, LIVE);
  }
  for (int i = 0; i < 10; i++) {
    held_large[i] = zeros(17000 + i * 300000);
    note(held_large[i], LIVE);
  }
  in_tls = zeros(77);
  note(in_tls, LIVE);
}

// 200 freed blocks: some freed immediately, so that they stay in a cache, and more blocks of one
// class than a cache holds.
__attribute__((noinline)) static void plant_freed() {
  static uintptr_t hidden[2000];
  for (int i = 0; i < 100; i++) {
    void* block = zeros(32 + i * 40);
    note(block, FREED);
    hidden[i] = ~reinterpret_cast<uintptr_t>(block);
  }
  for (int i = 0; i < 100; i++) free(reinterpret_cast<void*>(~hidden[i]));
  for (auto& block : hidden) block = ~reinterpret_cast<uintptr_t>(zeros(1100));
  for (int i = 0; i < 100; i++) note(reinterpret_cast<void*>(~hidden[i * 7]), FREED);
  for (auto& block : hidden) free(reinterpret_cast<void*>(~block));
}

static std::atomic<bool> ends;

// Keeps 64 blocks on its stack, and replaces them in turn.
static void* mutate(void* argument) {
  unsigned random = static_cast<unsigned>(reinterpret_cast<uintptr_t>(argument)) * 2654435761u + 1;
  Node* kept[64] = {};
  while (!ends) {
    for (int i = 0; i < 64; i++) {
      random = random * 1664525 + 1013904223;
      free(kept[i]);
      size_t bytes = sizeof(Node) + (random >> 16) % (random % 50 == 0 ? 60000 : 700);
      kept[i] = static_cast<Node*>(malloc(bytes));
      memset(kept[i], 0, malloc_usable_size(kept[i]));
      kept[i]->next = kept[(i + 1) % 64];
      kept[i]->value = i;
    }
    for (int i = 0; i < 64; i++)
      if (kept[i]->value != i) _exit(3);
    usleep(100);
  }
  for (auto* block : kept) free(block);
  return nullptr;
}

static void* plant_and_end(void*) {
  void* blocks[100];
  for (int i = 0; i < 100; i++) blocks[i] = malloc(16 + i * 30);
  for (auto* block : blocks) free(block);
  return nullptr;
}

static void say(const char* text) {
  if (write(1, text, strlen(text)) < 0) _exit(1);
}

static void list() {
  static const char* const words[] = {"leak", "live", "free"};
  char line[100];
  for (int i = 0; i < planted_count; i++) {
    snprintf(line, sizeof line, "%s %#lx %zu\n", words[planted[i].kind], ~planted[i].disguised,
             planted[i].bytes);
    say(line);
  }
  memset(line, 0, sizeof line);
}

int main(int argc, char** argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 4;
  int ending = argc > 2 ? atoi(argv[2]) : 4;
  plant_live();
  plant_leaked();
  plant_freed();
  for (int i = 0; i < ending; i++) {
    pthread_t thread;
    pthread_create(&thread, nullptr, plant_and_end, nullptr);
    pthread_join(thread, nullptr);
  }
  pthread_t ids[64];
  for (int i = 0; i < threads && i < 64; i++)
    pthread_create(&ids[i], nullptr, mutate, reinterpret_cast<void*>(uintptr_t(i + 1)));
  scrub_stack();
  say("ready\n");
  char c;
  while (read(0, &c, 1) == 1) {
    list();
    scrub_stack();
    say("done\n");
  }
  ends = true;
  for (int i = 0; i < threads && i < 64; i++) pthread_join(ids[i], nullptr);
  int live = 0;
  for (Node* node = reachable; node; node = node->next) live += node->value == 7;
  for (char* place : interior) live += *place == 7;
  for (void* block : held_large) live += malloc_usable_size(block) >= 17000;
  return live == 199 && in_tls ? 0 : 2;
}
