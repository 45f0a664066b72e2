// Serves requests until it is killed. It has a cache of 50 entries, which is full from the start.
// Argument 1 adds a leaked block in every 40 requests ("leak"), a heap that is full from the start,
// in which each request replaces the oldest block ("full"), or a log to which every tenth request
// appends ("log").
#include "target.hpp"

using namespace target;

static void* cache[50];
// More blocks than the number of requests in several seconds.
static void* blocks[50'000];

[[gnu::noinline]] static void keep_for_good() { keep(malloc(64)); }

[[gnu::noinline]] static void replace(unsigned entry) {
  free(cache[entry]);
  cache[entry] = malloc(80);
}

[[gnu::noinline]] static void replace_oldest(unsigned n) {
  void*& oldest = blocks[n % (sizeof blocks / sizeof *blocks)];
  free(oldest);
  oldest = malloc(120);
}

[[gnu::noinline]] static void append_to_log() {
  static void* log;
  static size_t length;
  length += 200;
  log = realloc(log, length);
  keep(log);
}

[[gnu::noinline]] static void serve() {
  void* request = malloc(100);
  keep(request);
  usleep(200);
  free(request);
}

int main(int, char** arguments) {
  bool leaks = strcmp(arguments[1], "leak") == 0;
  bool logs = strcmp(arguments[1], "log") == 0;
  bool is_full = strcmp(arguments[1], "full") == 0;
  for (unsigned i = 0; is_full && i < sizeof blocks / sizeof *blocks; i++) replace_oldest(i);
  for (unsigned i = 0; i < 50; i++) replace(i);
  say("ready");
  unsigned random = 1;
  for (unsigned n = 0;; n++) {
    serve();
    random = random * 1664525u + 1013904223u;
    replace((random >> 16) % 50);
    if (is_full) replace_oldest(n);
    if (logs && n % 10 == 0) append_to_log();
    if (leaks && n % 40 == 0) keep_for_good();
  }
}
