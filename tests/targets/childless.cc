// Two threads, no children, and blocks reachable only from memory that a forked child does not get
// (MADV_DONTFORK, MADV_WIPEONFORK). Protocol: prints "ready". Each byte on stdin is answered by
// "done LIST", where LIST is the addresses of the blocks. The end of input ends the program, with
// status 2 if it ever received a SIGCHLD, 3 if there is a child to wait for, and 4 if another
// process kept a closed descriptor open.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

static std::atomic<int> signals, stuck;
static std::atomic<bool> stop;

__attribute__((noinline)) static void plant(uintptr_t* hidden, int advice) {
  auto** memory = static_cast<void**>(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  madvise(memory, 8192, advice);
  memory[700] = calloc(1, 100);
  *hidden = ~reinterpret_cast<uintptr_t>(memory[700]);
}

__attribute__((noinline)) static void scrub_stack() {
  char room[65536];
  memset(room, 0, sizeof room);
  asm volatile("" ::"r"(room) : "memory");
}

int main() {
  struct sigaction action {};
  action.sa_handler = [](int) { signals++; };
  sigaction(SIGCHLD, &action, nullptr);
  static uintptr_t hidden[2];
  plant(&hidden[0], MADV_DONTFORK);
  plant(&hidden[1], MADV_WIPEONFORK);
  // The reader of a pipe sees its end as soon as the writer closes it.
  std::thread pipes([] {
    while (!stop) {
      int ends[2];
      if (pipe(ends) != 0) continue;
      char c;
      usleep(200);
      close(ends[1]);
      auto flags = signals.load();
      if (read(ends[0], &c, 1) != 0 && signals == flags) stuck++;
      close(ends[0]);
    }
  });
  scrub_stack();
  if (write(1, "ready\n", 6) != 6) return 1;
  char c;
  while (read(0, &c, 1) == 1) {
    char line[100];
    int n = snprintf(line, sizeof line, "done %#lx %#lx\n", ~hidden[0], ~hidden[1]);
    if (write(1, line, n) != n) return 1;
  }
  stop = true;
  pipes.join();
  bool has_child = waitpid(-1, nullptr, WNOHANG | __WALL) != -1 || errno != ECHILD;
  return signals ? 2 : has_child ? 3 : stuck ? 4 : 0;
}
