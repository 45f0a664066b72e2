// Creates processes and waits for them. Argument 1 selects the method, argument 2 the exit status
// of each process. Each executed process (argument 1 is "leaf") leaks one block.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#include <thread>

#include "target.hpp"

using namespace target;

extern char** environ;

static const char* program;

[[gnu::noinline]] static void lose(size_t bytes) { keep(malloc(bytes)); }

static char* const* arguments(const char* status) {
  static const char* list[] = {program, "leaf", status, nullptr};
  list[2] = status;
  return const_cast<char* const*>(list);
}

static int wait_for(pid_t child) {
  int status = 0;
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int by_fork(const char* status) {
  pid_t child = fork();
  if (child == 0) {
    execve(program, arguments(status), environ);
    _exit(99);
  }
  return wait_for(child);
}

static int by_vfork(const char* status) {
  pid_t child = vfork();
  if (child == 0) {
    execve(program, arguments(status), environ);
    _exit(99);
  }
  return wait_for(child);
}

static int by_spawn(const char* status) {
  pid_t child = 0;
  CHECK(posix_spawn(&child, program, nullptr, nullptr, arguments(status), environ) == 0);
  return wait_for(child);
}

static int by_system(const char* status) {
  char command[4200];
  snprintf(command, sizeof command, "'%s' leaf %s", program, status);
  int result = system(command);
  return WIFEXITED(result) ? WEXITSTATUS(result) : 128;
}

int main(int count, char** arguments) {
  CHECK(count >= 3);
  const char* kind = arguments[1];
  const char* status = arguments[2];
  program = arguments[0];
  if (strcmp(kind, "leaf") == 0) {
    lose(40);
    return atoi(status);
  }
  if (strcmp(kind, "alone") == 0) {
    // The child executes no program.
    pid_t child = fork();
    if (child == 0) {
      lose(60);
      _exit(atoi(status));
    }
    return wait_for(child);
  }
  if (strcmp(kind, "many") == 0) {
    int sum = 0;
    std::thread threads[4];
    for (auto& thread : threads)
      thread = std::thread([&] {
        for (int i = 0; i < 5; i++) __atomic_add_fetch(&sum, by_spawn("0") + by_fork("0"), __ATOMIC_RELAXED);
      });
    for (auto& thread : threads) thread.join();
    return sum;
  }
  if (strcmp(kind, "fork") == 0) return by_fork(status);
  if (strcmp(kind, "vfork") == 0) return by_vfork(status);
  if (strcmp(kind, "spawn") == 0) return by_spawn(status);
  if (strcmp(kind, "system") == 0) return by_system(status);
  if (strcmp(kind, "left") == 0) {
    // Leaves a running process behind, for which a reader of our output need not wait.
    pid_t child = fork();
    if (child == 0) {
      int nothing = open("/dev/null", O_RDWR);
      dup2(nothing, 1);
      dup2(nothing, 2);
      const char* list[] = {"sleep", status, nullptr};
      execv("/bin/sleep", const_cast<char* const*>(list));
      _exit(99);
    }
    return 0;
  }
  return 98;
}
