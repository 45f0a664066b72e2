// Plants a random graph of blocks. Any block may point to any other: to its start, inside it, or
// just past its end; optionally from odd offsets. There are roots of every kind, including
// registers and the kernel. The program itself computes which blocks are reachable.
//
//   random_graph SEED [BLOCKS] [u: words at odd offsets | e: nothing that LeakSanitizer takes for
//                               something else, and sizes that are the usable ones]
//
// Protocol: prints "ready" when all blocks are planted. "l" on stdin lists "live|leak ADDRESS
// BYTES" and "done". "c" overwrites all memory that malloc reuses, checks every reachable block and
// answers "done FAILURES". "s" makes LeakSanitizer, if it is linked in, write its report to stderr,
// and answers "done". Exits at the end of input.
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" __attribute__((weak)) int __lsan_do_recoverable_leak_check();

static uint64_t seed;
static uint64_t next(uint64_t below) {
  seed ^= seed << 13;
  seed ^= seed >> 7;
  seed ^= seed << 17;
  return (seed >> 11) % below;
}

// The complete graph; addresses are stored inverted.
struct Edge {
  uint32_t from, to;
  uint32_t offset, inside;
  bool lost;  // overwritten by a later edge
};
struct Block {
  uint64_t hidden;
  uint32_t bytes;
  bool live;
};
constexpr uint32_t MAX_BLOCKS = 5000, ROOTS = 48;
static Block blocks[MAX_BLOCKS];
static Edge edges[3 * MAX_BLOCKS];
static uint32_t block_count, edge_count;

static void* volatile global_roots[ROOTS];
static __thread void* volatile tls_root;
static thread_local struct Dynamic {
  void* volatile root = nullptr;
  ~Dynamic() {}
} dynamic_root;
static char* mapped[4];  // shared, read-only, inaccessible, a file

static uint64_t address(uint32_t block) { return ~blocks[block].hidden; }
static bool exact;
// LeakSanitizer does not accept an address just past the end.
static uint64_t any_address(uint32_t block) { return address(block) + next(blocks[block].bytes + !exact); }

__attribute__((noinline)) static void scrub_stack() {
  char room[100000];
  memset(room, 0, sizeof room);
  asm volatile("" ::"r"(room) : "memory");
}

// Number of threads that hold their pointer.
static volatile uint32_t holding;

// Holds one pointer only in a register, blocked in pause().
static void* in_general_register(void* hidden) {
  asm volatile(
      "mov %0, %%r15; not %%r15; lock incl %1; 1: mov $34, %%eax; syscall; jmp 1b" ::"r"(hidden), "m"(holding)
      : "rax", "rcx", "r11", "r15", "memory");
  return nullptr;
}
static void* in_vector_register(void* hidden) {
  asm volatile(
      "mov %0, %%rax; not %%rax; movq %%rax, %%xmm9; pslldq $8, %%xmm9; lock incl %1; 1: mov $34, %%eax; syscall; jmp 1b" ::"r"(hidden), "m"(holding)
      : "rax", "rcx", "r11", "xmm9", "memory");
  return nullptr;
}
static void* in_tls(void* hidden) {
  tls_root = reinterpret_cast<void*>(~reinterpret_cast<uint64_t>(hidden));
  scrub_stack();
  __atomic_add_fetch(&holding, 1, __ATOMIC_SEQ_CST);
  for (;;) pause();
}
static void* in_thread_local(void* hidden) {
  dynamic_root.root = reinterpret_cast<void*>(~reinterpret_cast<uint64_t>(hidden));
  scrub_stack();
  __atomic_add_fetch(&holding, 1, __ATOMIC_SEQ_CST);
  for (;;) pause();
}
static void* on_stack(void* hidden) {
  void* volatile root = reinterpret_cast<void*>(~reinterpret_cast<uint64_t>(hidden));
  scrub_stack();
  __atomic_add_fetch(&holding, 1, __ATOMIC_SEQ_CST);
  for (;;) {
    pause();
    asm volatile("" ::"r"(&root) : "memory");
  }
}

static void thread_root(void* (*main)(void*), uint32_t block) {
  static uint32_t threads;
  pthread_t id;
  pthread_create(&id, nullptr, main, reinterpret_cast<void*>(~any_address(block)));
  for (threads++; holding < threads;) usleep(100);
}

// Result of an exited thread, for the thread that joins it.
static volatile int result_tid;
static void* with_result(void* hidden) {
  result_tid = gettid();
  return reinterpret_cast<void*>(~reinterpret_cast<uint64_t>(hidden));
}
static void result_root(uint32_t block) {
  pthread_t id;
  result_tid = 0;
  pthread_create(&id, nullptr, with_result, reinterpret_cast<void*>(~any_address(block)));
  while (result_tid == 0 || syscall(SYS_tgkill, getpid(), result_tid, 0) == 0) usleep(100);
}

static int epoll_fd;
static void epoll_root(uint32_t block) {
  int ends[2];
  if (pipe(ends) != 0) abort();
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = any_address(block);
  if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, ends[0], &event) != 0) abort();
}
static void pipe_root(uint32_t block) {
  int ends[2];
  if (pipe(ends) != 0) abort();
  uint64_t a = any_address(block);
  if (write(ends[1], "msg", 3) != 3 || write(ends[1], &a, 8) != 8) abort();
}
static void timer_root(uint32_t block) {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGURG;
  event.sigev_value.sival_ptr = reinterpret_cast<void*>(any_address(block));
  timer_t id;
  if (syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &id) != 0) abort();
}
// Stores the pointer as setjmp stores rbp.
static void jump_root(uint32_t block, void* volatile* place) {
  uint64_t a = any_address(block);
  asm("xor %%fs:0x30, %0; rol $17, %0" : "+r"(a));
  *place = reinterpret_cast<void*>(a);
}

__attribute__((noinline)) static void plant(bool unaligned) {
  for (uint32_t i = 0; i < block_count; i++) {
    uint64_t kind = next(100);
    size_t bytes = kind < 70 ? next(200) : kind < 95 ? next(3000) : kind < 99 ? next(40000) : 140000 + next(99999);
    if (exact) bytes = bytes % 100000 / 16 * 16 + 24;
    void* p = !exact && kind % 10 == 3 ? memalign(64 << next(4), bytes + 1) : malloc(bytes);
    bytes = malloc_usable_size(p);
    memset(p, 0, bytes);
    blocks[i] = {~reinterpret_cast<uint64_t>(p), static_cast<uint32_t>(bytes), false};
    // Leaves holes, so that free chunks of all kinds are between the blocks.
    if (next(3) == 0) free(malloc(next(2000)));
  }
  for (uint32_t i = 0; i < edge_count; i++) {
    Edge& e = edges[i];
    e.from = next(block_count);
    e.to = next(block_count);
    uint32_t words = blocks[e.from].bytes / 8;
    e.offset = next(words) * 8;
    if (unaligned && words > 1) e.offset = next(blocks[e.from].bytes - 8);
    e.inside = next(blocks[e.to].bytes + !exact);
    if (next(2)) e.inside = 0;
    e.lost = false;
    for (uint32_t k = 0; k < i; k++)
      if (edges[k].from == e.from && edges[k].offset < e.offset + 8 && e.offset < edges[k].offset + 8) edges[k].lost = true;
    uint64_t to = address(e.to) + e.inside;
    memcpy(reinterpret_cast<char*>(address(e.from)) + e.offset, &to, 8);
  }
}

__attribute__((noinline)) static void root(int kind, uint32_t block) {
  static uint32_t used;
  blocks[block].live = true;
  switch (kind) {
    case 0: thread_root(in_general_register, block); break;
    case 1: thread_root(in_vector_register, block); break;
    case 2: thread_root(in_tls, block); break;
    case 3: thread_root(in_thread_local, block); break;
    case 4: thread_root(on_stack, block); break;
    case 5: epoll_root(block); break;
    case 6: timer_root(block); break;
    case 12: result_root(block); break;
    case 13: pipe_root(block); break;
    case 7: jump_root(block, &global_roots[used++]); break;
    case 8:
    case 9:
    case 10:
    case 11: *reinterpret_cast<uint64_t*>(mapped[kind - 8] + 8 * next(512)) = any_address(block); break;
    default: global_roots[used++] = reinterpret_cast<void*>(any_address(block));
  }
}

static void close_over() {
  for (bool more = true; more;) {
    more = false;
    for (uint32_t i = 0; i < edge_count; i++)
      if (!edges[i].lost && blocks[edges[i].from].live && !blocks[edges[i].to].live) more = blocks[edges[i].to].live = true;
  }
}

static void say(const char* text) {
  if (write(1, text, strlen(text)) < 0) _exit(1);
}

// Checks every byte of every reachable block.
static long check() {
  long failures = 0;
  for (int i = 0; i < 20000; i++) {
    size_t bytes = next(3000);
    memset(malloc(bytes), 0xff, bytes);
  }
  for (uint32_t b = 0; b < block_count; b++) {
    if (!blocks[b].live) continue;
    auto* p = reinterpret_cast<unsigned char*>(address(b));
    static unsigned char want[400000];
    memset(want, 0, blocks[b].bytes);
    for (uint32_t i = 0; i < edge_count; i++) {
      if (edges[i].from != b) continue;
      uint64_t to = address(edges[i].to) + edges[i].inside;
      memcpy(want + edges[i].offset, &to, 8);
    }
    failures += malloc_usable_size(p) != blocks[b].bytes || memcmp(p, want, blocks[b].bytes) != 0;
  }
  return failures;
}

int main(int argc, char** argv) {
  seed = 88172645463325252ull * (1 + strtoull(argc > 1 ? argv[1] : "1", nullptr, 10));
  for (int i = 0; i < 20; i++) next(2);
  block_count = argc > 2 ? atoi(argv[2]) : 400;
  if (block_count > MAX_BLOCKS) block_count = MAX_BLOCKS;
  edge_count = block_count * (5 + next(10)) / 10;
  epoll_fd = epoll_create1(0);
  FILE* file = tmpfile();
  if (!file || ftruncate(fileno(file), 4096) != 0) return 1;
  for (int i = 0; i < 4; i++) {
    int flags = i == 0 ? MAP_SHARED | MAP_ANONYMOUS : i == 3 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    mapped[i] = static_cast<char*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, flags, i == 3 ? fileno(file) : -1, 0));
  }
  exact = argc > 3 && argv[3][0] == 'e';
  plant(argc > 3 && argv[3][0] == 'u');
  uint32_t count = 1 + next(ROOTS - 1);
  for (uint32_t i = 0; i < count; i++) root(exact && next(2) ? next(5) : exact ? 99 : next(18), next(block_count));
  if (mprotect(mapped[1], 4096, PROT_READ) != 0 || mprotect(mapped[2], 4096, PROT_NONE) != 0) return 1;
  close_over();
  usleep(20000);
  scrub_stack();
  say("ready\n");
  char c;
  while (read(0, &c, 1) == 1) {
    char line[100];
    if (c == 's') {
      if (__lsan_do_recoverable_leak_check) __lsan_do_recoverable_leak_check();
      say("done\n");
      continue;
    }
    if (c == 'c') {
      snprintf(line, sizeof line, "done %ld\n", check());
      say(line);
      continue;
    }
    for (uint32_t i = 0; i < block_count; i++) {
      snprintf(line, sizeof line, "%s %#lx %u\n", blocks[i].live ? "live" : "leak", address(i), blocks[i].bytes);
      say(line);
    }
    memset(line, 0, sizeof line);
    scrub_stack();
    say("done\n");
  }
  _exit(0);
}
