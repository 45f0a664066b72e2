// Blocks of each of memcheck's classes: reached by pointers to starts, by interior pointers, and by
// chains of both. With an argument it waits for the end of its input, so that it can be examined at
// run time.
#include <cstdlib>
#include <cstring>

#include "target.hpp"

struct Link {
  Link* next;
  char rest[56];
};

struct Element {
  ~Element() { target::keep(this); }
  char text[24];
};

struct First {
  virtual ~First() = default;
  long one = 1;
};

struct Second {
  virtual ~Second() = default;
  long two = 2;
};

struct Both : First, Second {
  char rest[200] = {};
};

static void* volatile to_start;
static void* volatile into;
static void* volatile into_first;
static void* volatile into_both_ways[2];
static void* volatile into_last_byte;
static Element* volatile elements;
static Second* volatile secondary;
static Link* volatile chain;

[[gnu::noinline]] static char* block(size_t bytes) {
  char* made = static_cast<char*>(malloc(bytes));
  CHECK(made != nullptr);
  memset(made, 0, bytes);
  return made;
}

[[gnu::noinline]] static void plant() {
  to_start = block(100);
  // These are possibly lost: one block, and another block with all blocks reachable from its start.
  into = block(200) + 40;
  Link* first = reinterpret_cast<Link*>(block(sizeof(Link)));
  first->next = reinterpret_cast<Link*>(block(sizeof(Link)));
  first->next->next = reinterpret_cast<Link*>(block(sizeof(Link)));
  into_first = first->rest + 16;
  into_last_byte = block(250) + 249;
  // This block is also reachable through a pointer to its start.
  char* kept = block(300);
  into_both_ways[0] = kept + 96;
  into_both_ways[1] = kept;
  // Pointers that C++ derives from a start count as pointers to that start.
  elements = new Element[5];
  secondary = new Both;
  // A chain that begins with a pointer to a start, followed by an interior pointer to the second
  // block.
  chain = reinterpret_cast<Link*>(block(sizeof(Link)));
  chain->next = reinterpret_cast<Link*>(block(sizeof(Link)) + 24);
  // Lost: an unreachable block, and a block that is reachable only from that block.
  Link* lost = reinterpret_cast<Link*>(block(sizeof(Link)));
  lost->next = reinterpret_cast<Link*>(block(500));
  target::keep(lost);
}

[[gnu::noinline]] static void wipe() {
  char frame[16384];
  memset(frame, 0, sizeof frame);
  target::keep(frame);
}

int main(int count, char**) {
  if (count > 1) target::ready();
  plant();
  wipe();
  if (count > 1) target::done();
  return 0;
}
