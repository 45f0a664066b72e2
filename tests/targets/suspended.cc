// Coroutines: one is suspended and holds the only references to some blocks; another runs above it
// in the same memory.
//
//   suspended MODE
//
// `p`: the stacks are parts of one mapping, and the initial thread runs on one of them. `m`: the
// stacks are local arrays of main. `t`: the stacks are local arrays of a thread's function. `s`: no
// coroutine, but a signal handler whose stack is a local array of main has interrupted the function
// that holds the blocks. Another thread always sleeps; memhook-rs may call allocator functions in
// it.
//
// Protocol: the running coroutine prints "ready". On "c" from stdin, the suspended coroutine checks
// its blocks, and the answer is "done FAILURES". Exits at the end of input.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "target.hpp"

constexpr size_t STACK = 128 << 10, USED = 200;
constexpr int BLOCKS = 50;

static ucontext_t home, holder, runner;

// Only this frame contains the addresses of the blocks.
__attribute__((noinline)) static void hold_while(void (*suspended)()) {
  unsigned char* volatile blocks[BLOCKS];
  for (int i = 0; i < BLOCKS; i++) {
    blocks[i] = static_cast<unsigned char*>(malloc(USED));
    memset(blocks[i], i + 1, USED);
  }
  suspended();
  // Reallocates the memory of released blocks.
  void* anew[2 * BLOCKS];
  for (void*& block : anew) {
    block = malloc(USED);
    memset(block, 0xee, USED);
  }
  int failures = 0;
  for (int i = 0; i < BLOCKS; i++)
    for (size_t k = 0; k < USED; k++) failures += blocks[i][k] != i + 1;
  printf("done %d\n", failures);
  fflush(stdout);
}

static void hold() {
  hold_while([] { swapcontext(&holder, &home); });
  swapcontext(&holder, &home);
}

static void run() {
  target::ready();
  swapcontext(&runner, &holder);
}

static void start(ucontext_t* coroutine, void (*function)(), char* stack) {
  getcontext(coroutine);
  coroutine->uc_stack.ss_sp = stack;
  coroutine->uc_stack.ss_size = STACK;
  coroutine->uc_link = &home;
  makecontext(coroutine, function, 0);
  swapcontext(&home, coroutine);
}

static void both_on(char* memory) {
  start(&holder, hold, memory);
  // Clears block addresses from the registers that are saved below.
  start(&runner, run, memory + 2 * STACK);
}

__attribute__((noinline)) static void* on_local_arrays(void*) {
  char memory[3 * STACK];
  memset(memory, 0, sizeof memory);
  both_on(memory);
  target::keep(memory);
  return nullptr;
}

static void on_signal(int) { target::ready(); }

__attribute__((noinline)) static void in_a_handler() {
  char memory[STACK];
  stack_t stack = {};
  stack.ss_sp = memory;
  stack.ss_size = sizeof memory;
  CHECK(sigaltstack(&stack, nullptr) == 0);
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_ONSTACK;
  CHECK(sigaction(SIGUSR1, &action, nullptr) == 0);
  hold_while([] { raise(SIGUSR1); });
  stack.ss_flags = SS_DISABLE;
  CHECK(sigaltstack(&stack, nullptr) == 0);
  target::keep(memory);
}

static void* sleep_on(void*) {
  for (;;) sleep(1000);
}

int main(int argc, char** argv) {
  char mode = argc > 1 ? argv[1][0] : 'p';
  pthread_t sleeper;
  CHECK(pthread_create(&sleeper, nullptr, sleep_on, nullptr) == 0);
  if (mode == 't') {
    pthread_t thread;
    CHECK(pthread_create(&thread, nullptr, on_local_arrays, nullptr) == 0);
    pthread_join(thread, nullptr);
  } else if (mode == 'm') {
    on_local_arrays(nullptr);
  } else if (mode == 's') {
    in_a_handler();
  } else {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    void* memory = mmap(nullptr, 64 * STACK, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(memory != MAP_FAILED);
    both_on(static_cast<char*>(memory) + 32 * STACK);
  }
  target::wait_for_byte();
  return 0;
}
