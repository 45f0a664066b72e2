// Common code of programs that measure themselves. Each line on standard input asks for one round,
// and the answer is one line of figures. Between rounds the program waits in read(2), so that tools
// can attach and detach, and rounds with and without a tool run in one process with one heap.
#pragma once
#include <fcntl.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

namespace measured {

inline double clock_ns(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

// Nanoseconds since the start of the calling thread without its waits for a processor: the time for
// which it ran or slept. Other programs on the machine disturb this time less than elapsed time,
// and it still includes waits for the tool. (The wait time is the second number of schedstat,
// Documentation/scheduler/sched-stats.rst in the kernel's sources.)
inline double own_ns() {
  static thread_local int file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  char text[128];
  ssize_t length = file < 0 ? 0 : pread(file, text, sizeof text - 1, 0);
  double now = clock_ns(CLOCK_MONOTONIC);
  if (length <= 0) return now;
  text[length] = 0;
  char* second = strchr(text, ' ');
  return now - (second ? strtod(second, nullptr) : 0);
}

// Keeps the compiler from removing an allocation.
inline void keep(void* block) { asm volatile("" : : "r"(block) : "memory"); }

// Writes without stdio, whose buffers would be allocations.
inline void say(const char* format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  if (write(1, line, static_cast<size_t>(length)) != length) _exit(9);
}

// Reads the number in the next line; returns false at the end of the input.
inline bool asked(double* number) {
  char line[64];
  size_t length = 0;
  for (;;) {
    ssize_t got = read(0, line + length, 1);
    if (got <= 0) return false;
    if (line[length] == '\n') break;
    if (++length == sizeof line) return false;
  }
  line[length] = 0;
  *number = atof(line);
  return true;
}

// xorshift64 (Marsaglia, "Xorshift RNGs", 2003)
struct Random {
  uint64_t state;
  uint64_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  }
};

struct Cost {
  double ns = 0;
  double operations = 0;
};

// Repeats `block` for the given time. Each call does several operations.
template <typename Block>
inline Cost repeat(double milliseconds, double operations, Block block) {
  Cost cost;
  double before = own_ns(), end = clock_ns(CLOCK_MONOTONIC) + milliseconds * 1e6;
  do {
    block();
    cost.operations += operations;
  } while (clock_ns(CLOCK_MONOTONIC) < end);
  cost.ns = own_ns() - before;
  return cost;
}

// Binds the calling thread to one processor that the program may use. Index 0 is the last
// processor.
inline void bind_to_processor(int index) {
  static const std::vector<int> allowed = [] {
    cpu_set_t set;
    std::vector<int> all;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
      for (int i = CPU_SETSIZE - 1; i >= 0; i--)
        if (CPU_ISSET(i, &set)) all.push_back(i);
    return all;
  }();
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(allowed[static_cast<size_t>(index) % allowed.size()], &one);
  sched_setaffinity(0, sizeof one, &one);
}

// Answers each line "MILLISECONDS" with the nanoseconds per operation, averaged over the threads. A
// warm-up of a quarter of the time is not counted. `work(thread, ms)` runs in `threads` threads
// that live as long as the program. Thread 0 is the main thread.
inline int serve(int threads, const std::function<Cost(int, double)>& work) {
  std::vector<Cost> costs(static_cast<size_t>(threads));
  std::atomic<int> generation = 0, working = 0;
  std::atomic<double> milliseconds = 0;
  bind_to_processor(0);
  auto round = [&](int thread) {
    work(thread, milliseconds / 4);
    costs[static_cast<size_t>(thread)] = work(thread, milliseconds);
  };
  for (int thread = 1; thread < threads; thread++) {
    std::thread([&, thread] {
      bind_to_processor(thread);
      for (int seen = 0;; seen++) {
        generation.wait(seen);
        round(thread);
        working--;
        working.notify_one();
      }
    }).detach();
  }
  say("ready\n");
  for (double asked_for; asked(&asked_for);) {
    milliseconds = asked_for;
    working = threads - 1;
    generation++;
    generation.notify_all();
    round(0);
    for (int left; (left = working) != 0;) working.wait(left);
    double mean = 0;
    for (const Cost& cost : costs) mean += cost.ns / cost.operations / threads;
    say("%.4f\n", mean);
  }
  _exit(0);
}

}  // namespace measured
