// Keeps the lock of glibc's list of stacks locked. A thread that sets the credentials of all
// threads holds the lock until each thread has answered, and a thread in vfork(2) does not answer
// until its child has exited.
#include <sys/syscall.h>

#include <atomic>
#include <thread>

#include "usable.hpp"

using namespace target;

static int ends[2];
static std::atomic<pid_t> setter_tid{0};

static void wait_for_child() {
  pid_t child = vfork();
  if (child == 0) {
    char byte;
    while (read(ends[0], &byte, 1) < 0) {
    }
    _exit(0);
  }
  int status = 1;
  CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

// Returns true if a thread is in the state with this letter.
static bool is_in_state(const char* path, char state) {
  FILE* file = fopen(path, "r");
  char found = 0;
  CHECK(file && fscanf(file, "%*d %*s %c", &found) == 1);
  fclose(file);
  return found == state;
}

int main() {
  CHECK(pipe(ends) == 0);
  std::atomic<pid_t> waiter_tid{0};
  std::thread waiter([&] {
    waiter_tid = static_cast<pid_t>(syscall(SYS_gettid));
    wait_for_child();
  });
  auto stat_of = [](pid_t tid) { return "/proc/self/task/" + std::to_string(tid) + "/stat"; };
  while (waiter_tid == 0 || !is_in_state(stat_of(waiter_tid).c_str(), 'D')) usleep(1000);
  std::thread setter([] {
    setter_tid = static_cast<pid_t>(syscall(SYS_gettid));
    CHECK(seteuid(geteuid()) == 0);
  });
  while (setter_tid == 0 || !is_in_state(stat_of(setter_tid).c_str(), 'S')) usleep(1000);
  keep(malloc(10));
  say("ready");
  char byte;
  while (read(0, &byte, 1) < 0) CHECK(errno == EINTR);
  keep(malloc(20));
  CHECK(write(ends[1], "", 1) == 1);
  setter.join();
  waiter.join();
  say("free");
  serve();
}
