// Follows commands of single bytes, and answers each. The attacher may be stopped during a command.
//   b  allocates 100 blocks, in `before`
//   p  fills its ring and continues untraced; then releases 40 of those blocks and allocates 30, in
//      `during`
//   a  releases 20 more of the blocks from `before`, and allocates 50, in `after`; 5 further blocks
//      get addresses that blocks from `before` had, in `reusing`
// The program exits at the end of input.
#include "target.hpp"

using namespace target;

static constexpr size_t before_size = 100, during_size = 3000, after_size = 5000;
static void* from_before[100];
static int released;

[[gnu::noinline]] static void before() {
  for (auto& block : from_before) keep(block = malloc(before_size));
  released = 0;
}

[[gnu::noinline]] static void release(int count) {
  for (int i = 0; i < count; i++) free(from_before[released++]);
}

// Generates far more events than a ring holds, none of which can be folded.
[[gnu::noinline]] static void flood() {
  void* last = malloc(1);
  for (size_t i = 0; i < 300000; i++) {
    void* next = malloc(i % 50 + 1);
    keep(next);
    free(last);
    last = next;
  }
  free(last);
}

[[gnu::noinline]] static void during() {
  for (int i = 0; i < 30; i++) keep(malloc(during_size));
}

[[gnu::noinline]] static void after() {
  for (int i = 0; i < 50; i++) keep(malloc(after_size));
}

// The allocator reuses the released blocks, because no other code has allocated this size.
[[gnu::noinline]] static void reusing() {
  for (int i = 0; i < 5; i++) {
    void* block = malloc(before_size);
    keep(block);
    bool is_reused = false;
    for (int old = 0; old < released; old++) is_reused |= block == from_before[old];
    CHECK(is_reused);
  }
}

int main() {
  say("ready");
  char byte;
  while (read(0, &byte, 1) == 1) {
    if (byte == 'b') before();
    if (byte == 'p') {
      flood();
      during();
      release(40);
    }
    if (byte == 'a') {
      reusing();
      release(20);
      after();
    }
    say("done");
  }
}
