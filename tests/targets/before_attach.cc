// Allocates blocks before the attach, and releases and reallocates them during the trace.
#include "target.hpp"

using namespace target;

int main() {
  void* blocks[500];
  for (int i = 0; i < 500; i++) blocks[i] = malloc(100);
  void* grown = malloc(40);
  ready();
  for (int i = 0; i < 400; i++) free(blocks[i]);
  grown = realloc(grown, 4000);
  keep(grown);
  done();
  for (int i = 400; i < 500; i++) free(blocks[i]);
}
