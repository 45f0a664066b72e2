// Leaves operator new in the way that argument 1 names, repeatedly, in several threads, and
// allocates in between. The exits start in a new-handler, or in operator new itself.
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include <atomic>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "target.hpp"

using namespace target;

static size_t volatile huge = SIZE_MAX / 2;
static std::atomic<bool> stop{false};
static std::string way;
static thread_local jmp_buf home;
static thread_local ucontext_t scheduler, coroutine;
static thread_local char* coroutine_stack;

struct Away {};

static void* fail(void*) {
  void* block = ::operator new(huge);
  keep(block);
  return nullptr;
}

// Starts a thread, and ends the thread inside operator new.
static void in_a_thread(bool cancelled) {
  pthread_t thread;
  CHECK(pthread_create(&thread, nullptr, fail, nullptr) == 0);
  if (cancelled) CHECK(pthread_cancel(thread) == 0);
  CHECK(pthread_join(thread, nullptr) == 0);
}

static void enter_coroutine() {
  getcontext(&coroutine);
  coroutine.uc_stack.ss_sp = coroutine_stack;
  coroutine.uc_stack.ss_size = 64 << 10;
  coroutine.uc_link = nullptr;
  makecontext(&coroutine, [] { fail(nullptr); }, 0);
  swapcontext(&scheduler, &coroutine);
}

static void handler() {
  if (way == "handler") throw Away();
  if (way == "longjmp") longjmp(home, 1);
  if (way == "pthread_exit") pthread_exit(nullptr);
  if (way == "die") syscall(SYS_exit, 0);
  if (way == "coroutine") swapcontext(&coroutine, &scheduler);
  if (way == "cancel")
    for (;;) usleep(100);
}

[[gnu::noinline]] static void go_out() {
  if (way == "throw" || way == "handler") {
    try {
      fail(nullptr);
      CHECK(false);
    } catch (const std::bad_alloc&) {
    } catch (const Away&) {
    }
  } else if (way == "nothrow") {
    CHECK(!::operator new(huge, std::nothrow));
  } else if (way == "longjmp") {
    if (setjmp(home) == 0) fail(nullptr);
  } else if (way == "coroutine") {
    enter_coroutine();
  } else {
    in_a_thread(way == "cancel");
  }
}

static void work() {
  coroutine_stack = static_cast<char*>(malloc(64 << 10));
  for (unsigned i = 0; !stop; i++) {
    go_out();
    for (int k = 0; k < 4; k++) {
      auto block = static_cast<unsigned char*>(malloc(1 + i % 300));
      CHECK(block);
      block[i % 300] = static_cast<unsigned char>(k);
      CHECK(block[i % 300] == k);
      free(block);
    }
    // Pauses, so that sometimes no thread is leaving.
    if (i % 16 == 0) usleep(200);
  }
  // The last coroutine is still suspended on this stack.
  if (way != "coroutine") free(coroutine_stack);
}

template <int bytes>
[[gnu::noinline]] static void lose_below() {
  char room[bytes];
  keep(room);
  for (int i = 0; i < 1000; i++) keep(malloc(33));
  asm volatile("" : : "r"(room) : "memory");
}

int main(int, char** arguments) {
  way = arguments[1];
  if (way == "lose") {
    // After a longjmp, this allocates in frames deeper than the abandoned frame.
    ready();
    way = "longjmp";
    std::set_new_handler(handler);
    go_out();
    lose_below<16>();
    go_out();
    lose_below<4000>();
    done();
    return 0;
  }
  if (way == "signal") {
    // A signal handler allocates while a thread is inside operator new.
    signal(SIGUSR1, [](int) {
      void* block = malloc(55);
      keep(block);
      free(block);
    });
    ready();
    for (int i = 0; i < 50; i++) {
      std::set_new_handler([] {
        raise(SIGUSR1);
        std::set_new_handler(nullptr);
      });
      CHECK(!::operator new(huge, std::nothrow));
    }
    done();
    return 0;
  }
  if (way != "throw" && way != "nothrow") std::set_new_handler(handler);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; i++) threads.emplace_back(work);
  say("ready");
  wait_for_byte();
  stop = true;
  for (auto& thread : threads) thread.join();
}
