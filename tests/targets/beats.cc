// Allocates every millisecond. Answers each byte of input with the longest pause so far, in
// milliseconds.
#include <time.h>

#include <atomic>
#include <thread>

#include "target.hpp"

using namespace target;

static std::atomic<bool> stop{false};
static std::atomic<long> longest{0};

static long now_us() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000L + time.tv_nsec / 1000;
}

static void beat() {
  long last = now_us();
  while (!stop) {
    timespec pause = {0, 1000000};
    nanosleep(&pause, nullptr);
    keep(malloc(64));
    long now = now_us();
    if (now - last > longest) longest = now - last;
    last = now;
  }
}

int main() {
  std::thread beating(beat);
  say("ready");
  char byte;
  while (read(0, &byte, 1) == 1) {
    char line[64];
    snprintf(line, sizeof line, "longest %ld", longest.load() / 1000);
    say(line);
  }
  stop = true;
  beating.join();
}
