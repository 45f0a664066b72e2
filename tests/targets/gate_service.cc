// Serves until it is killed: requests, a cache of 50 entries that is full from the beginning, and, if
// argument 1 says so, a block in 40 requests that is lost.
#include "target.hpp"

using namespace target;

static void* cache[50];

[[gnu::noinline]] static void keep_for_good() { keep(malloc(64)); }

[[gnu::noinline]] static void replace(unsigned entry) {
  free(cache[entry]);
  cache[entry] = malloc(80);
}

[[gnu::noinline]] static void serve() {
  void* request = malloc(100);
  keep(request);
  usleep(200);
  free(request);
}

int main(int, char** arguments) {
  bool leaks = strcmp(arguments[1], "leak") == 0;
  for (unsigned i = 0; i < 50; i++) replace(i);
  say("ready");
  unsigned random = 1;
  for (unsigned n = 0;; n++) {
    serve();
    random = random * 1664525u + 1013904223u;
    replace((random >> 16) % 50);
    if (leaks && n % 40 == 0) keep_for_good();
  }
}
