// Custom allocators that need a description: a pool that takes its slabs from malloc, and nodes
// that come from the pool. Calls leave the pool in every way: by a return, an exception, a longjmp,
// and temporarily by a switch to another coroutine. A signal handler allocates while the pool is in
// use. If the input starts with `f`, the program first forks a child, which allocates until it is
// killed.
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <ucontext.h>

#include <atomic>
#include <new>

#include "target.hpp"

using namespace target;

#define APART [[gnu::noinline]] static
#define POOL extern "C" [[gnu::noinline, gnu::noclone]]

struct Pool {
  pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
  char *at = nullptr, *end = nullptr;
  int slabs = 0;
};

static Pool pool;
static jmp_buf way_out;
static ucontext_t main_context, coroutine_context;
static constexpr size_t throws = 666, jumps = 667, switches = 668, raises = 669, slab_bytes = 65536;

APART void take_slab(Pool* from) {
  from->at = static_cast<char*>(malloc(slab_bytes));
  from->end = from->at + slab_bytes;
  from->slabs++;
}

// Each block directly follows its size, so the addresses are unaligned.
POOL void* pool_alloc(Pool* from, size_t bytes) {
  if (bytes == throws) throw std::bad_alloc();
  if (bytes == jumps) longjmp(way_out, 1);
  if (bytes == switches) CHECK(swapcontext(&coroutine_context, &main_context) == 0);
  if (bytes == raises) CHECK(raise(SIGUSR1) == 0);
  if (bytes > slab_bytes / 2) return nullptr;
  CHECK(pthread_mutex_lock(&from->lock) == 0);
  auto size = static_cast<uint32_t>(bytes);
  size_t needed = bytes + sizeof size;
  if (static_cast<size_t>(from->end - from->at) < needed) take_slab(from);
  char* block = from->at + sizeof size;
  memcpy(from->at, &size, sizeof size);
  from->at += needed;
  CHECK(pthread_mutex_unlock(&from->lock) == 0);
  return block;
}

POOL void pool_free(Pool* to, void* block) {
  CHECK(pthread_mutex_lock(&to->lock) == 0);
  uint32_t size;
  memcpy(&size, static_cast<char*>(block) - sizeof size, sizeof size);
  memset(block, 0xee, size);
  CHECK(pthread_mutex_unlock(&to->lock) == 0);
}

POOL void* pool_calloc(Pool* from, uint32_t count, size_t bytes) {
  void* block = pool_alloc(from, count * bytes);
  return memset(block, 0, count * bytes);
}

POOL void* pool_realloc(Pool* from, void* block, size_t bytes) {
  uint32_t old;
  memcpy(&old, static_cast<char*>(block) - sizeof old, sizeof old);
  void* other = pool_alloc(from, bytes);
  if (!other) return nullptr;
  memcpy(other, block, old < bytes ? old : bytes);
  pool_free(from, block);
  return other;
}

struct Node {
  Node* next;
  char rest[56];
};
static Node* spare;

// Returns 0 on success. On failure, returns another number and leaves `out` unchanged.
POOL int node_get(int kind, Node** out) {
  if (kind < 0) return -1;
  if (!spare) {
    auto* nodes = static_cast<Node*>(pool_alloc(&pool, 8 * sizeof(Node)));
    for (int i = 0; i < 8; i++) {
      memcpy(&nodes[i].next, &spare, sizeof spare);
      spare = &nodes[i];
    }
  }
  *out = spare;
  spare = spare->next;
  return 0;
}

POOL void node_put(Node** place) {
  (*place)->next = spare;
  spare = *place;
  *place = nullptr;
}

// The hook cannot call a function with arguments on the stack.
POOL void* many_arguments(size_t bytes, int, int, int, int, int, size_t more) {
  return pool_alloc(&pool, bytes + more);
}
POOL void* short_one(Pool*);
asm(".text; .globl short_one; .type short_one, @function; short_one: ret; nop; .size short_one, . - short_one;"
    ".globl after_it; .type after_it, @function; after_it: nop; ret; .size after_it, . - after_it; .balign 16");

APART void plain() { keep(pool_alloc(&pool, 100)); }
APART void zeroed() { keep(pool_calloc(&pool, 3, 7)); }
APART void grown() { keep(pool_realloc(&pool, pool_alloc(&pool, 50), 150)); }
APART void not_grown() { CHECK(pool_realloc(&pool, pool_alloc(&pool, 33), 1 << 20) == nullptr); }
APART void released() { pool_free(&pool, pool_alloc(&pool, 200)); }
APART void odd() { keep(pool_alloc(&pool, 1)); }
APART void after_throw() { keep(pool_alloc(&pool, 30)); }
APART void after_jump() { keep(pool_alloc(&pool, 31)); }
APART void in_handler() { keep(pool_alloc(&pool, 70)); }
APART void interrupted() { keep(pool_alloc(&pool, raises)); }
APART void in_coroutine() { keep(pool_alloc(&pool, switches)); }
APART void meanwhile() { keep(pool_alloc(&pool, 32)); }
APART void in_thread() { keep(pool_alloc(&pool, 40)); }
APART void in_child() { keep(pool_alloc(&pool, 80)); }
APART void many() { keep(many_arguments(10, 0, 0, 0, 0, 0, 10)); }

APART void thrown() {
  try {
    pool_alloc(&pool, throws);
    CHECK(false);
  } catch (const std::bad_alloc&) {
  }
}

APART void jumped() {
  if (setjmp(way_out) == 0) pool_alloc(&pool, jumps);
}

APART void nodes() {
  Node *one = nullptr, *other = nullptr;
  for (int i = 0; i < 60; i++) CHECK(node_get(1, &one) == 0);
  for (int i = 0; i < 10; i++) {
    CHECK(node_get(1, &other) == 0);
    Node* before = other;
    CHECK(node_get(-1, &other) == -1 && other == before);
    node_put(&other);
    CHECK(other == nullptr);
  }
}

static void* work(void*) {
  for (int i = 0; i < 500; i++) {
    void* block = pool_alloc(&pool, 40);
    pool_free(&pool, block);
    if (i % 2) in_thread();
  }
  return nullptr;
}

// Uses the pool constantly.
static std::atomic<bool> is_busy, is_over;
static void* be_busy(void*) {
  Pool own;
  keep(pool_alloc(&own, 9));
  is_busy = true;
  while (!is_over) {
    if (own.at) own.at = own.end - 4096;
    for (int i = 0; i < 50; i++) pool_free(&own, pool_alloc(&own, 9));
  }
  free(own.end - slab_bytes);
  return nullptr;
}

int main() {
  struct sigaction action = {};
  action.sa_handler = [](int) { in_handler(); };
  CHECK(sigaction(SIGUSR1, &action, nullptr) == 0);
  pthread_t busy;
  CHECK(pthread_create(&busy, nullptr, be_busy, nullptr) == 0);
  while (!is_busy) usleep(1000);
  say("ready");
  pid_t other = 0;
  char byte = 0;
  while (read(0, &byte, 1) == 1 && byte == 'f') {
    other = fork();
    CHECK(other >= 0);
    if (other == 0) CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    while (other == 0) {
      in_child();
      usleep(1000);
    }
    char line[32];
    snprintf(line, sizeof line, "child %d", static_cast<int>(other));
    say(line);
  }
  pool.at = pool.end = nullptr;
  pool.slabs = 0;
  for (int i = 0; i < 300; i++) plain();
  for (int i = 0; i < 40; i++) zeroed();
  for (int i = 0; i < 25; i++) grown();
  for (int i = 0; i < 5; i++) not_grown();
  for (int i = 0; i < 1000; i++) released();
  for (int i = 0; i < 21; i++) odd();
  for (int i = 0; i < 7; i++) thrown();
  for (int i = 0; i < 11; i++) after_throw();
  for (int i = 0; i < 9; i++) jumped();
  for (int i = 0; i < 12; i++) after_jump();
  for (int i = 0; i < 3; i++) interrupted();
  static char stack[65536];
  CHECK(getcontext(&coroutine_context) == 0);
  coroutine_context.uc_stack.ss_sp = stack;
  coroutine_context.uc_stack.ss_size = sizeof stack;
  coroutine_context.uc_link = &main_context;
  makecontext(&coroutine_context, in_coroutine, 0);
  CHECK(swapcontext(&main_context, &coroutine_context) == 0);
  for (int i = 0; i < 4; i++) meanwhile();
  CHECK(swapcontext(&main_context, &coroutine_context) == 0);
  nodes();
  many();
  pthread_t ids[4];
  for (auto& id : ids) CHECK(pthread_create(&id, nullptr, work, nullptr) == 0);
  for (auto& id : ids) CHECK(pthread_join(id, nullptr) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    for (int i = 0; i < 10; i++) in_child();
    _exit(5);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 5);
  if (other) CHECK(kill(other, 0) == 0 && kill(other, SIGKILL) == 0 && waitpid(other, &status, 0) == other);
  is_over = true;
  CHECK(pthread_join(busy, nullptr) == 0);
  char line[32];
  snprintf(line, sizeof line, "slabs %d", pool.slabs);
  say(line);
  done();
  return 0;
}
