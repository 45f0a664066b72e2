// Leaks through indirect calls: realloc, libc's own allocations, function pointers, a signal
// handler.
#include <csignal>
#include <thread>
#include <vector>

#include "target.hpp"

using namespace target;

[[gnu::noinline]] static void leak_by_growing() {
  void* block = nullptr;
  for (size_t size = 1; size <= 5000; size += 7) block = realloc(block, size);
  keep(block);
}

[[gnu::noinline]] static void leak_in_other_thread(void* block) {
  for (int i = 0; i < 1000; i++) block = realloc(block, 20 + static_cast<size_t>(i % 300));
  block = realloc(block, 777);
  keep(block);
}

static void leak_across_threads() { std::thread(leak_in_other_thread, malloc(10)).join(); }

[[gnu::noinline]] static void leak_by_strdup() {
  for (int i = 0; i < 12; i++) keep(strdup("twenty-three characters"));
}

[[gnu::noinline]] static void leak_by_asprintf() {
  char* text = nullptr;
  CHECK(asprintf(&text, "%0200d", 7) == 200);
  keep(text);
}

[[gnu::noinline]] static void leak_by_getline() {
  char text[] = "one\ntwo\nthree\n";
  FILE* file = fmemopen(text, sizeof text - 1, "r");
  for (int i = 0; i < 3; i++) {
    char* line = nullptr;
    size_t room = 0;
    CHECK(getline(&line, &room, file) > 0);
    keep(line);
  }
  CHECK(fclose(file) == 0);
}

using Allocate = void* (*)(size_t);
using Release = void (*)(void*);
struct Operations {
  Allocate allocate;
  Release release;
};
// Data relocations instead of GOT slots. The table is volatile, so that the compiler makes no
// direct calls.
static Operations volatile table[2] = {{malloc, free}, {malloc, free}};

[[gnu::noinline]] static void leak_by_table() {
  for (int i = 0; i < 30; i++) {
    void* block = table[i % 2].allocate(333);
    keep(block);
    if (i % 3 != 0) table[i % 2].release(block);
  }
}

static volatile sig_atomic_t handled;
[[gnu::noinline]] static void leak_in_handler(int) {
  if (handled % 10 == 0)
    keep(malloc(55));
  else
    free(malloc(56));
  handled = handled + 1;
}

// Raises synchronous signals, because malloc is not async-signal-safe.
[[gnu::noinline]] static void raise_many() {
  signal(SIGUSR1, leak_in_handler);
  for (int i = 0; i < 100; i++) raise(SIGUSR1);
  CHECK(handled == 100);
}

// Raises a signal whose handler runs on an alternate stack with unknown bounds.
static void raise_on_other_stack() {
  static char stack[65536];
  stack_t alternate{};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof stack;
  CHECK(sigaltstack(&alternate, nullptr) == 0);
  struct sigaction action {};
  action.sa_handler = leak_in_handler;
  action.sa_flags = SA_ONSTACK;
  CHECK(sigaction(SIGUSR2, &action, nullptr) == 0);
  for (int i = 0; i < 100; i++) raise(SIGUSR2);
  CHECK(handled == 200);
}

int main() {
  ready();
  leak_by_growing();
  leak_across_threads();
  leak_by_strdup();
  leak_by_asprintf();
  leak_by_getline();
  leak_by_table();
  raise_many();
  raise_on_other_stack();
  done();
}
