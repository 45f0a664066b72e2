// Keeps the lock of glibc's list of streams locked: a thread that flushes all streams holds it
// while it waits for a reader.
#include <fcntl.h>
#include <sys/syscall.h>

#include <atomic>
#include <string>
#include <thread>

#include "usable.hpp"

using namespace target;

static int ends[2];
static std::atomic<pid_t> flusher_tid{0};

static bool sleeps(pid_t tid) {
  // Does not use stdio, whose list is locked.
  char text[512];
  int file = open(("/proc/self/task/" + std::to_string(tid) + "/stat").c_str(), O_RDONLY);
  ssize_t got = read(file, text, sizeof text - 1);
  close(file);
  CHECK(got > 0);
  text[got] = 0;
  const char* behind = strrchr(text, ')');
  return behind && behind[2] == 'S';
}

int main() {
  CHECK(pipe(ends) == 0);
  int size = fcntl(ends[1], F_SETPIPE_SZ, 4096);
  CHECK(size > 0);
  std::string full(static_cast<size_t>(size), 'x');
  CHECK(write(ends[1], full.data(), full.size()) == size);
  FILE* stream = fdopen(ends[1], "w");
  CHECK(stream && fputs("more", stream) >= 0);
  std::thread flusher([] {
    flusher_tid = static_cast<pid_t>(syscall(SYS_gettid));
    fflush(nullptr);
  });
  while (flusher_tid == 0 || !sleeps(flusher_tid)) usleep(1000);
  usleep(20'000);
  keep(malloc(10));
  say("ready");
  char byte;
  while (read(0, &byte, 1) < 0) CHECK(errno == EINTR);
  keep(malloc(20));
  CHECK(read(ends[0], full.data(), full.size()) == size);
  flusher.join();
  say("free");
  serve();
}
