// A large heap whose pages are all read repeatedly, and a thread that repeatedly maps, touches and
// unmaps a page. For each byte of input, it prints "longest" and the longest duration of one such
// iteration since the previous byte, in microseconds, minus its wait for a processor.
//
// Argument: MiB of heap.
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "target.hpp"

static const size_t BYTES = 64 << 10, PAGE = 4096;

static std::vector<unsigned char*> heap;
static std::atomic<bool> stop;
static std::atomic<long> longest_ns;

static long now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

// Returns how long this thread has waited for a processor: the second number of schedstat
// (Documentation/scheduler/sched-stats.rst).
static long waited_ns(int schedstat) {
  char text[128] = {};
  long ran = 0, waited = 0;
  CHECK(pread(schedstat, text, sizeof text - 1, 0) > 0);
  CHECK(sscanf(text, "%ld %ld", &ran, &waited) == 2);
  return waited;
}

static void* map(void*) {
  int schedstat = open("/proc/thread-self/schedstat", O_RDONLY);
  CHECK(schedstat >= 0);
  while (!stop) {
    long waited = waited_ns(schedstat), begin = now_ns();
    void* page = mmap(nullptr, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    *static_cast<volatile char*>(page) = 1;
    CHECK(munmap(page, PAGE) == 0);
    long took = now_ns() - begin;
    took -= waited_ns(schedstat) - waited;
    if (took > longest_ns) longest_ns = took;
    usleep(200);
  }
  return nullptr;
}

static void* read_all(void*) {
  while (!stop) {
    for (unsigned char* block : heap)
      for (size_t i = 0; i < BYTES; i += PAGE) CHECK(static_cast<volatile unsigned char*>(block)[i] == 7);
    usleep(100'000);
  }
  return nullptr;
}

int main(int, char** argv) {
  size_t count = static_cast<size_t>(atoi(argv[1])) * ((1 << 20) / BYTES);
  for (size_t i = 0; i < count; i++) {
    auto* block = static_cast<unsigned char*>(malloc(BYTES));
    memset(block, 7, BYTES);
    heap.push_back(block);
  }
  pthread_t mapper, reader;
  CHECK(pthread_create(&mapper, nullptr, map, nullptr) == 0);
  CHECK(pthread_create(&reader, nullptr, read_all, nullptr) == 0);
  target::say("ready");
  for (char byte; read(0, &byte, 1) == 1;) {
    char line[64];
    snprintf(line, sizeof line, "longest %ld", longest_ns.exchange(0) / 1000);
    target::say(line);
  }
  stop = true;
  CHECK(pthread_join(mapper, nullptr) == 0 && pthread_join(reader, nullptr) == 0);
}
