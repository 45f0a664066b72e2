// A program in which one thread sleeps, outside any allocator and the loader, while it holds a
// lock. The program's own allocator (-DOWN_ALLOCATOR, or a preloaded allocator), its auditor, or a
// glibc hook (-DGLIBC_HOOK) also takes this lock. The thread sleeps until the program is told to
// continue. With the argument "again", it sleeps until the program is asked whether it is usable,
// and then takes the lock again.
#include <sys/eventfd.h>

#include "usable.hpp"
#ifdef OWN_ALLOCATOR
#include "lending_allocator.hpp"
#else
#include "lent_lock.hpp"
#endif

using namespace target;

#ifdef GLIBC_HOOK
// malloc_hook(3), which the headers of glibc 2.34 no longer declare.
extern "C" void* (*volatile __malloc_hook)(size_t, const void*);
extern "C" void* __libc_malloc(size_t);

static void* locking_malloc(size_t bytes, const void*) {
  take_lent_lock();
  __malloc_hook = nullptr;
  void* block = __libc_malloc(bytes);
  __malloc_hook = locking_malloc;
  return block;
}
#endif

static int may_end;
static pthread_barrier_t is_held;

static void* hold_the_lock(void*) {
  pthread_mutex_lock(lent_lock());
  pthread_barrier_wait(&is_held);
  uint64_t count;
  while (read(may_end, &count, sizeof count) < 0) CHECK(errno == EINTR);
  pthread_mutex_unlock(lent_lock());
  return nullptr;
}

__attribute__((noinline)) static void leak_by_malloc() {
  for (int i = 0; i < 10; i++) keep(malloc(77));
}
__attribute__((noinline)) static void leak_by_new() {
  for (int i = 0; i < 7; i++) keep(::operator new(123));
}
__attribute__((noinline)) static void leak_by_new_array() {
  for (int i = 0; i < 6; i++) keep(new char[321]);
}
// The unwinder must pass through every frame between operator new and this function.
__attribute__((noinline)) static void leak_after_throw() {
  for (int i = 0; i < 5; i++) {
    size_t too_much = size_t{1} << 62;
    asm volatile("" : "+r"(too_much));
    try {
      keep(::operator new(too_much));
      CHECK(false);
    } catch (const std::bad_alloc&) {
    }
    keep(malloc(55));
  }
}

static pthread_barrier_t is_free, is_over;

static void* hold_the_lock_again_and_again(void*) {
  for (;;) {
    hold_the_lock(nullptr);
    pthread_barrier_wait(&is_free);
    pthread_barrier_wait(&is_over);
  }
}

// Like serve(), while the lock is free.
static void serve_in_between() {
  char byte = 0;
  ssize_t got;
  while ((got = read(0, &byte, 1)) == 1 || (got < 0 && errno == EINTR)) {
    if (got != 1) continue;
    if (byte != 'u') return;
    uint64_t one = 1;
    CHECK(write(may_end, &one, sizeof one) == sizeof one);
    pthread_barrier_wait(&is_free);
    use_everything();
    pthread_barrier_wait(&is_over);
    pthread_barrier_wait(&is_held);
    say("usable");
  }
}

int main(int count, char**) {
  make_lent_lock();
  may_end = eventfd(0, 0);
  for (pthread_barrier_t* barrier : {&is_held, &is_free, &is_over}) pthread_barrier_init(barrier, nullptr, 2);
  if (count > 1) {
    pthread_t holder;
    CHECK(pthread_create(&holder, nullptr, hold_the_lock_again_and_again, nullptr) == 0);
    pthread_barrier_wait(&is_held);
    say("ready");
    serve_in_between();
    _exit(0);
  }
  pthread_t holder;
  CHECK(pthread_create(&holder, nullptr, hold_the_lock, nullptr) == 0);
  pthread_barrier_wait(&is_held);
#ifdef GLIBC_HOOK
  __malloc_hook = locking_malloc;
#endif
  ready();
  uint64_t one = 1;
  CHECK(write(may_end, &one, sizeof one) == sizeof one);
  CHECK(pthread_join(holder, nullptr) == 0);
  leak_by_malloc();
  leak_by_new();
  leak_by_new_array();
  leak_after_throw();
  say("done");
  serve();
}
