// A heap with known holders of all blocks: variables, a thread, shared blocks, cycles, a map,
// objects of a class, and an unreachable chain. At a byte of input it allocates more blocks.
#include "target.hpp"

#include <map>
#include <thread>

using namespace target;

struct Node {
  Node* a;
  Node* b;
};

struct Session {
  virtual ~Session() = default;
  Session* next = nullptr;
  char* text = nullptr;
};

// Returns a node. No two callers use sizes that round to the same chunk size.
static Node* node(size_t bytes) { return static_cast<Node*>(calloc(1, bytes)); }

static Node* volatile registry;
static Node* volatile second;
static std::map<int, int> table;
static Session* volatile sessions;
static Node* volatile left;
static Node* volatile right;

[[gnu::noinline]] static void add_session() {
  auto* session = new Session;
  session->text = static_cast<char*>(calloc(1, 300));
  session->next = sessions;
  sessions = session;
}

[[gnu::noinline]] static void build() {
  Node* r = node(1000);
  Node* a = node(2000);
  Node* b = node(3000);
  Node* shared = node(500);
  Node* c = node(700);
  Node* d = node(800);
  r->a = a;
  r->b = b;
  a->a = shared;
  a->b = c;
  b->a = shared;
  c->a = d;
  d->a = c;
  Node* e = node(4000);
  Node* x = node(600);
  e->a = x;
  b->b = x;
  registry = r;
  second = e;
  Node* both = node(1500);
  left = both;
  right = both;
  for (int i = 0; i < 100; i++) table[i] = i;
  for (int i = 0; i < 10; i++) add_session();
}

static Node* volatile handed_over;
static volatile bool has_built;
static volatile bool stop;

int main() {
  // Builds the structures on threads that exit, because their stacks leave no pointers behind.
  std::thread([] {
    build();
    Node* head = node(1100);
    head->a = node(1200);
    keep(head);
    // Passes the outer block to the next thread, which never has a pointer to the inner block.
    Node* outer = node(5000);
    outer->a = node(900);
    handed_over = outer;
  }).join();
  std::thread holder([] {
    Node* volatile own = handed_over;
    handed_over = nullptr;
    has_built = true;
    while (!stop) usleep(1000);
    keep(own);
  });
  while (!has_built) usleep(1000);
  ready();
  std::thread([] {
    for (int i = 100; i < 150; i++) table[i] = i;
    for (int i = 0; i < 7; i++) add_session();
    free(second);
    second = nullptr;
  }).join();
  done();
  stop = true;
  holder.join();
  return 0;
}
