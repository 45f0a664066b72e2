// Allocates with little space left on a stack above a guard page: the stack of a thread with
// PTHREAD_STACK_MIN, of a coroutine with 4 KiB, and of a signal handler with 2 KiB. Argument: the
// remaining bytes.
#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <climits>

#include "target.hpp"

using namespace target;

static size_t room;

// Calls the allocator with the stack pointer `room` bytes above `low`.
[[gnu::noinline]] static void allocate_near(char* low) {
  char* here;
  asm volatile("mov %%rsp, %0" : "=r"(here));
  CHECK(here > low + room);
  auto* filled = static_cast<volatile char*>(alloca((static_cast<size_t>(here - low) - room) & ~size_t{15}));
  filled[0] = 1;
  auto* block = static_cast<unsigned char*>(malloc(100));
  block[99] = 7;
  auto* zeros = static_cast<unsigned char*>(calloc(5, 20));
  block = static_cast<unsigned char*>(realloc(block, 104));
  bool good = block[99] == 7 && zeros[99] == 0 && filled[0] == 1;
  free(block);
  free(zeros);
  CHECK(good);
}

// Returns the lowest byte of a stack. The page below it is inaccessible.
static char* new_stack(size_t bytes) {
  size_t whole = (bytes + 4095) & ~size_t{4095};
  auto* area = static_cast<char*>(mmap(nullptr, whole + 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  CHECK(area != MAP_FAILED && mprotect(area + 4096, whole, PROT_READ | PROT_WRITE) == 0);
  return area + 4096;
}

static void* run_thread(void*) {
  pthread_attr_t own;
  void* low;
  size_t bytes;
  CHECK(pthread_getattr_np(pthread_self(), &own) == 0 && pthread_attr_getstack(&own, &low, &bytes) == 0);
  pthread_attr_destroy(&own);
  // The tracer may or may not know the bounds of this stack at this point.
  for (int i = 0; i < 5; i++) {
    allocate_near(static_cast<char*>(low));
    usleep(5000);
  }
  return nullptr;
}

static void threads() {
  pthread_attr_t how;
  CHECK(pthread_attr_init(&how) == 0 && pthread_attr_setstacksize(&how, PTHREAD_STACK_MIN) == 0);
  for (int i = 0; i < 5; i++) {
    pthread_t thread;
    CHECK(pthread_create(&thread, &how, run_thread, nullptr) == 0 && pthread_join(thread, nullptr) == 0);
  }
}

static char* coroutine_stack;
static ucontext_t main_context, coroutine_context;
static void run_coroutine() {
  for (;;) {
    allocate_near(coroutine_stack);
    swapcontext(&coroutine_context, &main_context);
  }
}

static void coroutine() {
  if (!coroutine_stack) {
    coroutine_stack = new_stack(4096);
    CHECK(getcontext(&coroutine_context) == 0);
    coroutine_context.uc_stack.ss_sp = coroutine_stack;
    coroutine_context.uc_stack.ss_size = 4096;
    makecontext(&coroutine_context, run_coroutine, 0);
  }
  for (int i = 0; i < 5; i++) CHECK(swapcontext(&main_context, &coroutine_context) == 0);
}

static char* handler_stack;
static void handle(int) { allocate_near(handler_stack); }

static void handler() {
  if (!handler_stack) {
    // The size of the kernel's data on a signal stack is not fixed.
    size_t bytes = getauxval(AT_MINSIGSTKSZ) + 2048;
    handler_stack = new_stack(bytes);
    stack_t stack{handler_stack, 0, (bytes + 4095) & ~size_t{4095}};
    CHECK(sigaltstack(&stack, nullptr) == 0);
    struct sigaction action = {};
    action.sa_handler = handle;
    action.sa_flags = SA_ONSTACK;
    CHECK(sigaction(SIGUSR1, &action, nullptr) == 0);
  }
  for (int i = 0; i < 5; i++) CHECK(raise(SIGUSR1) == 0);
}

static void all() {
  threads();
  coroutine();
  handler();
}

int main(int, char** arguments) {
  room = strtoul(arguments[1], nullptr, 10);
  // The space is sufficient without a tracer.
  all();
  ready();
  all();
  done();
}
