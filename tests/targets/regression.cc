// A program before and after a regression: it keeps blocks and serves requests. The argument is the
// number of requests that it fails to release.
#include "target.hpp"

using namespace target;

[[gnu::noinline]] static void fill_cache() {
  for (int i = 0; i < 100; i++) keep(malloc(1000));
  keep(nullptr);
}

[[gnu::noinline]] static void serve_request(bool forgets) {
  char* request = static_cast<char*>(malloc(300));
  keep(request);
  char* answer = static_cast<char*>(malloc(5000));
  keep(answer);
  free(answer);
  if (!forgets) free(request);
  keep(nullptr);
}

[[gnu::noinline]] static void only_sometimes() {
  keep(malloc(40));
  keep(nullptr);
}

int main(int count, char** arguments) {
  int forgotten = count > 1 ? atoi(arguments[1]) : 0;
#ifdef OTHER_BUILD
  // Shifts the addresses of all subsequent code.
  asm volatile(".skip 4096, 0x90");
#endif
  ready();
  fill_cache();
  for (int i = 0; i < 1000; i++) serve_request(i < forgotten);
  if (forgotten == 0) only_sometimes();
  done();
}
