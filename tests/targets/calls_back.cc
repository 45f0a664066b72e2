// A program whose allocator calls a hook of the program when blocks are released: gperftools'
// tcmalloc (-DTCMALLOC), jemalloc (-DJEMALLOC) or mimalloc (-DMIMALLOC). The hook takes a lock that
// a sleeping thread holds until the program is told to continue. Before that, the program leaks
// some blocks.
#include <sys/eventfd.h>

#include "lent_lock.hpp"
#include "usable.hpp"

using namespace target;

static int may_end;
static pthread_barrier_t is_held;

static void hook() { take_lent_lock(); }

#if defined TCMALLOC
extern "C" int MallocHook_AddDeleteHook(void (*)(const void*));
static void set_hook() {
  CHECK(MallocHook_AddDeleteHook([](const void*) { hook(); }));
}
#elif defined JEMALLOC
extern "C" int mallctl(const char*, void*, size_t*, void*, size_t);
struct extent_hooks_s;
using Dalloc = bool(extent_hooks_s*, void*, size_t, bool, unsigned);
struct extent_hooks_s {
  void* alloc;
  Dalloc* dalloc;
  void* others[7];
};
static Dalloc* dalloc;
static extent_hooks_s hooks;
static void set_hook() {
  extent_hooks_s *old = nullptr, *own = &hooks;
  size_t bytes = sizeof old;
  CHECK(mallctl("arena.0.extent_hooks", &old, &bytes, nullptr, 0) == 0);
  hooks = *old;
  dalloc = old->dalloc;
  hooks.dalloc = [](extent_hooks_s* self, void* at, size_t size, bool committed, unsigned arena) {
    hook();
    return dalloc(self, at, size, committed, arena);
  };
  CHECK(mallctl("arena.0.extent_hooks", nullptr, nullptr, &own, sizeof own) == 0);
}
#else
extern "C" void mi_register_deferred_free(void (*)(bool, unsigned long long, void*), void*);
static void set_hook() {
  mi_register_deferred_free([](bool, unsigned long long, void*) { hook(); }, nullptr);
}
#endif

static void* hold_the_lock(void*) {
  pthread_mutex_lock(lent_lock());
  pthread_barrier_wait(&is_held);
  uint64_t count;
  while (read(may_end, &count, sizeof count) < 0) CHECK(errno == EINTR);
  pthread_mutex_unlock(lent_lock());
  return nullptr;
}

__attribute__((noinline)) static void lose() {
  for (int i = 0; i < 50; i++) keep(memset(malloc(1000), 7, 1000));
}

// Overwrites the remains of earlier calls on the stack.
__attribute__((noinline)) static void overwrite_the_stack() {
  volatile char bytes[8192];
  for (volatile char& byte : bytes) byte = 0;
}

int main() {
  may_end = eventfd(0, 0);
  pthread_barrier_init(&is_held, nullptr, 2);
  lose();
  overwrite_the_stack();
  set_hook();
  make_lent_lock();
  pthread_t holder;
  CHECK(pthread_create(&holder, nullptr, hold_the_lock, nullptr) == 0);
  pthread_barrier_wait(&is_held);
  ready();
  uint64_t one = 1;
  CHECK(write(may_end, &one, sizeof one) == sizeof one);
  CHECK(pthread_join(holder, nullptr) == 0);
  say("done");
  serve();
}
