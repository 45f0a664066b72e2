// Source of heap.snapshot, which was made in /opt/heap, because the snapshot contains the path,
// with an empty environment:
//   c++ -O1 -g -pthread heap.cc -o heap
//   env -i PATH=/usr/bin ./heap & sleep 1; memhook-rs scan --save heap.snapshot $!
#include <cstdlib>
#include <cstdio>
#include <unistd.h>
#include <thread>
#include <string>
#include <vector>
struct Shape { virtual ~Shape() {} int x = 7; };
struct Node { Node *next; char text[24]; };
static Node *list; static std::vector<void*> kept;
int main() {
  mallopt: ;
  setvbuf(stdout, nullptr, _IONBF, 0);
  for (int i = 0; i < 40; i++) { Node *n = (Node*)malloc(sizeof(Node)); n->next = list; list = n; snprintf(n->text, 20, "node %d", i); }
  for (int i = 0; i < 30; i++) { void *p = malloc(16 << (i % 8)); if (i % 3) free(p); else kept.push_back(p); }
  for (int i = 0; i < 9; i++) (void)!malloc(100 + i * 40);   // leaked
  auto *s = new Shape; kept.push_back(s);
  new Shape;
  kept.push_back(malloc(200000));
  std::thread t([]{ for (int i = 0; i < 12; i++) { void *p = malloc(48 * (i + 1)); if (i % 2) kept.push_back(p); else free(p);} puts("ready"); pause(); });
  t.join();
}
