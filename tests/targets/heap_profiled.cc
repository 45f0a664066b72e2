// A program under the heap profiler of gperftools. One of its threads sleeps while it writes a
// profile, and holds the profiler's lock, which every allocator call takes. The thread writes into
// a pipe that stays full until the program is told to continue.
#include <fcntl.h>
#include <gperftools/heap-profiler.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <atomic>

#include "usable.hpp"

using namespace target;

static std::atomic<int> writer_id;
static std::atomic<bool> is_written;

static void* dump(void*) {
  writer_id = static_cast<int>(syscall(SYS_gettid));
  HeapProfilerDump("test");
  is_written = true;
  return nullptr;
}

// Waits until the kernel shows that a thread sleeps in write, which is system call 1
// (proc_pid_syscall(5)).
static void wait_until_it_writes() {
  while (!writer_id) usleep(1000);
  char path[64];
  snprintf(path, sizeof path, "/proc/self/task/%d/syscall", writer_id.load());
  for (char text[16] = {}; strncmp(text, "1 ", 2) != 0; usleep(1000)) {
    int file = open(path, O_RDONLY);
    CHECK(file >= 0 && read(file, text, sizeof text - 1) >= 0);
    close(file);
  }
}

__attribute__((noinline)) static void leak_by_malloc() {
  for (int i = 0; i < 10; i++) keep(malloc(77));
}
__attribute__((noinline)) static void leak_by_new() {
  for (int i = 0; i < 7; i++) keep(::operator new(123));
}

int main(int, char** arguments) {
  const char* prefix = arguments[1];
  char name[256];
  snprintf(name, sizeof name, "%s.0001.heap", prefix);
  CHECK(mkfifo(name, 0600) == 0);
  int pipe = open(name, O_RDWR | O_NONBLOCK);
  static char page[4096];
  while (write(pipe, page, sizeof page) > 0) {
  }
  CHECK(errno == EAGAIN);
  HeapProfilerStart(prefix);
  keep(malloc(1));
  pthread_t writer;
  CHECK(pthread_create(&writer, nullptr, dump, nullptr) == 0);
  wait_until_it_writes();
  ready();
  while (!is_written) {
    if (read(pipe, page, sizeof page) < 0) CHECK(errno == EAGAIN);
  }
  CHECK(pthread_join(writer, nullptr) == 0);
  leak_by_malloc();
  leak_by_new();
  say("done");
  serve();
  HeapProfilerStop();
}
