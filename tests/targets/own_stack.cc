// A program whose only thread leaves its stack permanently, like a thread that always runs
// coroutines. At the first byte of input it switches to a stack in its own memory, after the second
// byte it keeps 20 blocks, and at the third byte it exits.
#include <ucontext.h>

#include "target.hpp"

using namespace target;

static void* volatile kept[20];
static ucontext_t initial, coroutine;
alignas(64) static char stack[256 * 1024];

__attribute__((noinline)) static void hold_some() {
  for (void* volatile& block : kept) block = malloc(765);
}

static void run() {
  say("there");
  wait_for_byte();
  hold_some();
  say("done");
  wait_for_byte();
  _exit(0);
}

int main() {
  CHECK(getcontext(&coroutine) == 0);
  coroutine.uc_stack.ss_sp = stack;
  coroutine.uc_stack.ss_size = sizeof stack;
  coroutine.uc_link = &initial;
  makecontext(&coroutine, run, 0);
  ready();
  swapcontext(&initial, &coroutine);
}
