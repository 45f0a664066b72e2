// Many short-lived threads, each of which releases all of its blocks, except for some planted
// leaks.
#include <pthread.h>

#include "target.hpp"

using namespace target;

[[gnu::noinline]] static void leak_in_thread() { keep(malloc(48)); }

static void* work(void* argument) {
  for (int i = 0; i < 20; i++) free(malloc(static_cast<size_t>(i) * 10));
  if (argument) leak_in_thread();
  return nullptr;
}

int main(int count, char** arguments) {
  int threads = count > 1 ? atoi(arguments[1]) : 10000;
  pthread_t ids[16];
  // glibc caches the stacks of exited threads. This fills the cache before the attach.
  for (auto& id : ids) CHECK(pthread_create(&id, nullptr, work, nullptr) == 0);
  for (auto& id : ids) pthread_join(id, nullptr);
  ready();
  for (int i = 0; i < threads; i += 16) {
    for (int j = 0; j < 16; j++)
      CHECK(pthread_create(&ids[j], nullptr, work, (i + j) % 100 == 0 ? ids : nullptr) == 0);
    for (auto& id : ids) CHECK(pthread_join(id, nullptr) == 0);
  }
  done();
}
