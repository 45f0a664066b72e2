// A program with N threads that plants reachable and unreachable blocks before an attach, prints
// the counters of its own allocator, and then waits. Protocol: prints "ready" when all blocks are
// planted. Repeats the list and the counters for each byte on stdin. At the end of input, checks
// its reachable blocks and exits.
//
// It prints one line for each planted block, "leak ADDRESS BYTES" or "live ADDRESS BYTES", and its
// mallinfo2. The addresses are disguised in the program's own memory.
#include <malloc.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

struct Shape {
  virtual ~Shape() = default;
  virtual int sides() const = 0;
  char name[24] = "shape";
};
struct Square : Shape {
  int sides() const override { return 4; }
  Shape* next = nullptr;
};
struct Named {
  virtual ~Named() = default;
  long id = 7;
};
struct Both : Square, Named {
  long more[3] = {};
};

// The list of planted blocks contains no pointers: addresses are stored inverted, in mapped memory
// outside malloc's heap.
struct Planted {
  uintptr_t disguised;
  size_t bytes;
  bool leaked;
};
static Planted planted[200000];
static int planted_count;
static pthread_mutex_t plant_lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((noinline)) static void note(void* p, bool leaked) {
  pthread_mutex_lock(&plant_lock);
  planted[planted_count++] = {~reinterpret_cast<uintptr_t>(p), malloc_usable_size(p), leaked};
  pthread_mutex_unlock(&plant_lock);
}

struct Node {
  Node* next;
  Node* other;
  long value;
};

static Node* reachable_list;
static void* interior_only;
static Named* secondary_base;
static thread_local void* volatile in_tls;
static __thread void* volatile in_static_tls;
static std::vector<std::string>* strings;

// The stack used for planting must not keep the leaks alive.
__attribute__((noinline)) static void scrub_stack() {
  char room[65536];
  memset(room, 0, sizeof room);
  asm volatile("" ::"r"(room) : "memory");
}

__attribute__((noinline)) static void plant_leaks(int seed) {
  for (int i = 0; i < 50; i++) {
    void* p = malloc(40 + (i + seed) % 64);
    memset(p, 0, malloc_usable_size(p));
    note(p, true);
  }
  for (int i = 0; i < 10; i++) {
    auto* p = new Square;
    note(p, true);
  }
  // A chain: only its head is a direct leak.
  Node* head = nullptr;
  for (int i = 0; i < 20; i++) {
    auto* n = static_cast<Node*>(calloc(1, sizeof(Node)));
    n->next = head;
    head = n;
    note(n, true);
  }
  // A ring that nothing else points to.
  auto* a = static_cast<Node*>(calloc(1, sizeof(Node)));
  auto* b = static_cast<Node*>(calloc(1, sizeof(Node)));
  a->next = b;
  b->next = a;
  note(a, true);
  note(b, true);
  auto* text = static_cast<char*>(malloc(64));
  memset(text, 0, malloc_usable_size(text));
  strcpy(text, "a leaked text");
  note(text, true);
  auto* large = static_cast<char*>(malloc(300000 + seed % 7 * 4096));
  memset(large, 0, 4096);
  note(large, true);
}

__attribute__((noinline)) static void plant_live() {
  for (int i = 0; i < 100; i++) {
    auto* n = static_cast<Node*>(calloc(1, sizeof(Node)));
    n->other = static_cast<Node*>(calloc(3, sizeof(Node)));
    pthread_mutex_lock(&plant_lock);
    n->next = reachable_list;
    reachable_list = n;
    pthread_mutex_unlock(&plant_lock);
    note(n, false);
    note(n->other, false);
  }
}

// Frees blocks of several sizes, so that caches, fast lists and bins contain blocks.
__attribute__((noinline)) static void churn() {
  std::vector<void*> blocks;
  for (int i = 0; i < 2000; i++) blocks.push_back(malloc(16 + i * 7 % 3000));
  for (size_t i = 0; i < blocks.size(); i += 2) free(blocks[i]);
  for (size_t i = 1; i < blocks.size(); i += 2) {
    if (i % 5 == 0) {
      memset(blocks[i], 0, malloc_usable_size(blocks[i]));
      note(blocks[i], true);
    } else {
      free(blocks[i]);
    }
  }
  memset(blocks.data(), 0, blocks.size() * sizeof(void*));
}

static pthread_barrier_t barrier;

__attribute__((noinline)) static void work(int seed) {
  churn();
  plant_live();
  plant_leaks(seed);
}

static void* thread_main(void* argument) {
  in_tls = calloc(1, 77);
  note(in_tls, false);
  in_static_tls = calloc(1, 78);
  note(in_static_tls, false);
  work(static_cast<int>(reinterpret_cast<intptr_t>(argument)));
  // The block is zeroed, because its former contents may point to a planted block.
  void* on_stack = calloc(1, 79);
  note(on_stack, false);
  asm volatile("" : "+m"(on_stack));
  scrub_stack();
  pthread_barrier_wait(&barrier);
  pause();
  asm volatile("" : "+m"(on_stack));
  return nullptr;
}

// Before 2.33, glibc has only mallinfo, which counts in int.
#pragma weak mallinfo2
static struct mallinfo2 counted() {
  if (mallinfo2) return mallinfo2();
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  struct mallinfo m = mallinfo();
  auto wide = [](int n) { return static_cast<size_t>(static_cast<unsigned>(n)); };
  return {wide(m.arena), wide(m.ordblks), wide(m.smblks), wide(m.hblks), wide(m.hblkhd),
          wide(m.usmblks), wide(m.fsmblks), wide(m.uordblks), wide(m.fordblks), wide(m.keepcost)};
}

static void say(const char* text) {
  if (write(1, text, strlen(text)) < 0) _exit(1);
}

static void counts() {
  char line[256];
  for (int i = 0; i < planted_count; i++) {
    snprintf(line, sizeof line, "%s %#lx %zu\n", planted[i].leaked ? "leak" : "live",
             ~planted[i].disguised, planted[i].bytes);
    say(line);
  }
  memset(line, 0, sizeof line);
  struct mallinfo2 m = counted();
  snprintf(line, sizeof line, "mallinfo arena=%zu uordblks=%zu fordblks=%zu hblks=%zu hblkhd=%zu fsmblks=%zu keepcost=%zu\n",
           m.arena, m.uordblks, m.fordblks, m.hblks, m.hblkhd, m.fsmblks, m.keepcost);
  say(line);
}

int main(int argc, char** argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 4;
  pthread_barrier_init(&barrier, nullptr, threads + 1);
  strings = new std::vector<std::string>;
  note(strings, false);
  for (int i = 0; i < 10; i++) strings->push_back(std::string(100 + i, 's'));
  for (auto& s : *strings) note(s.data(), false);
  interior_only = static_cast<char*>(malloc(500)) + 123;
  note(static_cast<char*>(interior_only) - 123, false);
  auto* both = new Both;
  secondary_base = both;
  note(both, false);
  both = nullptr;
  for (int i = 0; i < threads; i++) {
    pthread_t id;
    pthread_create(&id, nullptr, thread_main, reinterpret_cast<void*>(intptr_t{i}));
  }
  work(99);
  void* aligned = nullptr;
  if (posix_memalign(&aligned, 4096, 500000) != 0) return 1;
  memset(aligned, 0, 100);
  note(aligned, true);
  aligned = nullptr;
  pthread_barrier_wait(&barrier);
  usleep(50000);
  scrub_stack();
  say("ready\n");
  char c;
  while (read(0, &c, 1) == 1) {
    counts();
    scrub_stack();
    say("done\n");
  }
  int live = 0;
  for (Node* n = reachable_list; n; n = n->next) live += n->other->value == 0;
  return live == 100 * (threads + 1) && interior_only && secondary_base->id == 7 ? 0 : 2;
}
