// Allocates on coroutine stacks, deep in a recursion, and on a stack that is later unmapped.
#include <sys/mman.h>
#include <ucontext.h>

#include "target.hpp"

using namespace target;

static ucontext_t outside, inside;

[[gnu::noinline]] static void leak_in_coroutine() {
  keep(malloc(61));
  swapcontext(&inside, &outside);
  keep(malloc(62));
}

static void coroutine() { leak_in_coroutine(); }

static void run_coroutine() {
  constexpr size_t size = 65536;
  void* stack = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(stack != MAP_FAILED && getcontext(&inside) == 0);
  inside.uc_stack.ss_sp = stack;
  inside.uc_stack.ss_size = size;
  inside.uc_link = &outside;
  makecontext(&inside, coroutine, 0);
  CHECK(swapcontext(&outside, &inside) == 0);
  free(malloc(63));
  CHECK(swapcontext(&outside, &inside) == 0);
  CHECK(munmap(stack, size) == 0);
}

[[gnu::noinline]] static int recurse(int depth) {
  if (depth == 0) {
    keep(malloc(71));
    return 0;
  }
  char room[32];
  keep(room);
  return recurse(depth - 1) + 1;
}

int main() {
  ready();
  for (int i = 0; i < 50; i++) run_coroutine();
  for (int i = 0; i < 5; i++) CHECK(recurse(3000) == 3000);
  done();
}
