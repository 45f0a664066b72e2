// fork, vfork and exec, posix_spawn: the children work correctly and are not traced.
#include <spawn.h>
#include <sys/wait.h>

#include "target.hpp"

using namespace target;

extern char** environ;

static int hammer(int rounds) {
  int sum = 0;
  for (int i = 0; i < rounds; i++) {
    char* block = static_cast<char*>(malloc(static_cast<size_t>(i % 500 + 1)));
    block[0] = static_cast<char>(i);
    sum += block[0] & 1;
    free(block);
  }
  return sum;
}

[[gnu::noinline]] static void leak_in_parent() { keep(malloc(321)); }

static void expect_success(pid_t child) {
  int status = 0;
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main() {
  ready();
  for (int i = 0; i < 20; i++) {
    leak_in_parent();
    pid_t child = fork();
    if (child == 0) {
      for (int j = 0; j < 1000; j++) keep(malloc(64));  // a leak in the child, not in the parent
      _exit(hammer(100000) == 50000 ? 0 : 1);
    }
    hammer(5000);
    expect_success(child);
  }
  const char* arguments[] = {"sh", "-c", "exit 0", nullptr};
  char* const* argv = const_cast<char* const*>(arguments);
  for (int i = 0; i < 10; i++) {
    pid_t child = vfork();
    if (child == 0) {
      execve("/bin/sh", argv, environ);
      _exit(1);
    }
    expect_success(child);
    CHECK(posix_spawn(&child, "/bin/sh", nullptr, nullptr, argv, environ) == 0);
    expect_success(child);
    child = fork();
    if (child == 0) {
      execve("/bin/sh", argv, environ);
      _exit(1);
    }
    expect_success(child);
  }
  done();
}
