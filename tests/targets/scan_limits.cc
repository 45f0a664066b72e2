// A program whose snapshot is expensive, because of reserved, read or written memory.
//
//   scan_limits reserve BYTES   reserves BYTES and writes a few pages, far apart
//   scan_limits zeros BYTES     reads BYTES of memory that nobody has written, with small and huge
//                               pages
//   scan_limits write BYTES     writes to each page of BYTES of memory, repeatedly, and measures
//                               its longest pause
//   scan_limits fill BYTES      fills BYTES of memory and then waits
//
// Protocol: prints "ready". The answer to each byte on stdin is "done RESIDENT-BYTES
// LONGEST-PAUSE-NS", the longest pause since the previous byte. Exits at the end of input. One
// block in use is reachable only from the reserved memory.
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static char* memory;
static size_t bytes;
static volatile bool stop;
static uint64_t longest_pause;

static uint64_t now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void* write_everywhere(void*) {
  uint64_t last;
  for (uint64_t round = 1; !stop; round++) {
    // Leaves the processor to the tests.
    usleep(2000);
    last = now();
    for (size_t at = 64; at < bytes && !stop; at += 4096) {
      *reinterpret_cast<volatile uint64_t*>(memory + at) = round;
      if (at % (1 << 20) == 64) {
        uint64_t t = now();
        if (t - last > __atomic_load_n(&longest_pause, __ATOMIC_RELAXED))
          __atomic_store_n(&longest_pause, t - last, __ATOMIC_RELAXED);
        last = t;
      }
    }
  }
  return nullptr;
}

static size_t resident() {
  char line[200] = {};
  int file = open("/proc/self/statm", O_RDONLY);
  ssize_t n = read(file, line, sizeof line - 1);
  close(file);
  long all = 0, pages = 0;
  if (n <= 0 || sscanf(line, "%ld %ld", &all, &pages) != 2) abort();
  return pages * 4096ul;
}

static void* block(size_t size) {
  void* p = malloc(size);
  memset(p, 0x5a, size);
  return p;
}

int main(int argc, char** argv) {
  if (argc != 3) return 1;
  bytes = strtoull(argv[2], nullptr, 10);
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  memory = static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0));
  if (memory == MAP_FAILED) return 1;
  madvise(memory, bytes, MADV_NOHUGEPAGE);
  *reinterpret_cast<void**>(memory) = block(100);
  block(200);
  pthread_t thread;
  bool writes = false;
  switch (argv[1][0]) {
    case 'r':
      for (size_t at = 0; at < bytes; at += bytes / 16) *reinterpret_cast<void**>(memory + at) = block(100);
      break;
    case 'z': {
      madvise(memory + bytes / 2, bytes / 2, MADV_HUGEPAGE);
      uint64_t sum = 0;
      for (size_t at = 4096; at < bytes; at += 4096) sum += *reinterpret_cast<volatile uint64_t*>(memory + at);
      if (sum != 0) return 1;
      break;
    }
    case 'f':
      memset(memory + 4096, 1, bytes - 4096);
      break;
    case 'w':
      memset(memory + 4096, 1, bytes - 4096);
      pthread_create(&thread, nullptr, write_everywhere, nullptr);
      writes = true;
      break;
    default:
      return 1;
  }
  if (write(1, "ready\n", 6) != 6) return 1;
  char c;
  while (read(0, &c, 1) == 1) {
    uint64_t pause = __atomic_exchange_n(&longest_pause, 0, __ATOMIC_RELAXED);
    char line[100];
    int n = snprintf(line, sizeof line, "done %zu %lu\n", resident(), pause);
    if (write(1, line, n) != n) return 1;
  }
  stop = true;
  if (writes) pthread_join(thread, nullptr);
  return 0;
}
