// Leaks blocks before and during the trace, and keeps others, with a separate function for each
// kind.
#include "target.hpp"

using namespace target;

struct Node {
  Node* next;
  char* text;
};
struct Pair {
  Pair* other;
  char rest[120];
};

static void* volatile kept[300];
static Node* volatile kept_list;

[[gnu::noinline]] static void scrub_stack() {
  char room[100000];
  memset(room, 0, sizeof room);
  asm volatile("" ::"r"(room) : "memory");
}

[[gnu::noinline]] static void lose_before() {
  for (int i = 0; i < 7; i++) keep(memset(malloc(100), 1, 100));
}

[[gnu::noinline]] static void lose_alone() {
  for (int i = 0; i < 2000; i++) keep(memset(malloc(72), 2, 72));
}

[[gnu::noinline]] static char* make_text() { return static_cast<char*>(memset(malloc(30), 'x', 30)); }

[[gnu::noinline]] static Node* make_list(int length) {
  Node* list = nullptr;
  for (int i = 0; i < length; i++) list = new Node{list, make_text()};
  return list;
}

[[gnu::noinline]] static void lose_list() { keep(make_list(40)); }

[[gnu::noinline]] static void lose_pairs() {
  for (int i = 0; i < 5; i++) {
    auto* one = new Pair{};
    one->other = new Pair{one, {}};
    keep(one);
  }
}

[[gnu::noinline]] static void keep_some() {
  for (auto& block : kept) block = memset(malloc(90), 3, 90);
  kept_list = make_list(50);
}

int main() {
  lose_before();
  keep(malloc(40));
  scrub_stack();
  ready();
  lose_alone();
  lose_list();
  lose_pairs();
  keep_some();
  scrub_stack();
  usleep(20000);
  done();
}
