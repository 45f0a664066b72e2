// Measures how long threads are stopped. Each thread sleeps for 200 microseconds, allocates and
// releases a block, and records the longest time of one iteration. A line on standard input starts
// a round, and the next line ends it. The answer is the longest time of any thread, and the longest
// time among all other threads, in microseconds. Arguments: THREADS, then libraries to load.
#include <dlfcn.h>

#include <algorithm>

#include "measured.hpp"

using namespace measured;

struct alignas(128) Longest {
  std::atomic<double> ns = 0;
};

int main(int count, char** arguments) {
  size_t threads = static_cast<size_t>(atoi(arguments[1]));
  for (int i = 2; i < count; i++) {
    if (!dlopen(arguments[i], RTLD_NOW)) {
      fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
  }
  static std::vector<Longest> longest(threads);
  for (size_t i = 0; i < threads; i++) {
    std::thread([i] {
      double last = clock_ns(CLOCK_MONOTONIC);
      for (;;) {
        timespec pause{0, 200000};
        nanosleep(&pause, nullptr);
        void* block = malloc(64);
        keep(block);
        free(block);
        double now = clock_ns(CLOCK_MONOTONIC);
        if (now - last > longest[i].ns) longest[i].ns = now - last;
        last = now;
      }
    }).detach();
  }
  say("ready\n");
  for (double ignored; asked(&ignored);) {
    for (Longest& one : longest) one.ns = 0;
    if (!asked(&ignored)) break;
    std::vector<double> all;
    for (Longest& one : longest) all.push_back(one.ns / 1e3);
    std::sort(all.rbegin(), all.rend());
    say("%.1f %.1f\n", all[0], all.size() > 1 ? all[1] : 0.0);
  }
  _exit(0);
}
