// A server whose children allocate with their first instructions. Each line of input is a command:
//
//   short N   forks N children one after another, waits for each, and prints "short PID" for each: a
//             child leaks 7 blocks of 1000 bytes, frees 3 of 50, and ends immediately, or, every
//             second child, 5 ms later
//   nested    a child leaks 7 blocks and forks a child that also does so; prints "nested PID" for
//             both
//   handler   forks inside operator new, in the new-handler, from which the child returns; says
//             "handler PID"
//   stay      forks a child that allocates and stays until the end; prints "stay PID"
//   execute   a child allocates and executes /bin/true; prints "execute PID"
//   many N    forks N children, all of which stay until the last one has been forked, and waits for
//             all; prints "many"
//   end       ends the staying children, and the server, which prints "done"
//
#include <sys/wait.h>

#include <new>
#include <string>
#include <vector>

#include "target.hpp"

using namespace target;

static void* volatile kept[64];

[[gnu::noinline]] static void leak_at_birth() {
  for (int i = 0; i < 7; i++) kept[i] = malloc(1000);
}

[[gnu::noinline]] static void use_at_birth() {
  for (int i = 0; i < 3; i++) {
    void* block = malloc(50);
    keep(block);
    free(block);
  }
}

static void live_shortly(bool waits) {
  leak_at_birth();
  use_at_birth();
  if (waits) usleep(5000);
}

static void tell(const char* what, pid_t pid) {
  CHECK(pid > 0);
  char line[64];
  snprintf(line, sizeof line, "%s %d", what, pid);
  say(line);
}

static void collect(pid_t pid) {
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static pid_t fork_to(void (*work)(bool), bool argument) {
  pid_t pid = fork();
  if (pid == 0) {
    work(argument);
    _exit(0);
  }
  return pid;
}

static void nest(bool) {
  leak_at_birth();
  pid_t pid = fork_to(live_shortly, false);
  tell("nested", pid);
  collect(pid);
}

static int end_of_stay[2];

static void stay(bool) {
  live_shortly(false);
  close(end_of_stay[1]);
  char byte;
  // The trace must also show all later events of the child.
  void* last = malloc(123);
  keep(last);
  while (read(end_of_stay[0], &byte, 1) < 0 && errno == EINTR) {
  }
  free(last);
}

static void execute(bool) {
  live_shortly(false);
  execl("/bin/true", "true", nullptr);
  _exit(1);
}

static pid_t forked_by_handler = -1;

// operator new calls this handler inside a wrapper when memory is exhausted.
static void fork_in_handler() {
  pid_t pid = fork();
  if (pid == 0) live_shortly(false);
  forked_by_handler = pid;
  std::set_new_handler(nullptr);
}

// The child returns from the handler into the wrapper that its parent had entered.
static void fork_below_wrapper() {
  std::set_new_handler(fork_in_handler);
  void* none = operator new(size_t{1} << 60, std::nothrow);
  CHECK(none == nullptr);
  if (forked_by_handler == 0) {
    live_shortly(false);
    _exit(0);
  }
  tell("handler", forked_by_handler);
  collect(forked_by_handler);
}

int main() {
  CHECK(pipe(end_of_stay) == 0);
  std::vector<pid_t> staying;
  say("ready");
  char line[64];
  while (fgets(line, sizeof line, stdin)) {
    char what[16] = "";
    int count = 0;
    CHECK(sscanf(line, "%15s %d", what, &count) >= 1);
    std::string command = what;
    if (command == "short") {
      for (int i = 0; i < count; i++) {
        pid_t pid = fork_to(live_shortly, i % 2 == 1);
        tell("short", pid);
        collect(pid);
      }
    } else if (command == "nested") {
      pid_t pid = fork_to(nest, false);
      tell("nested", pid);
      collect(pid);
    } else if (command == "handler") {
      fork_below_wrapper();
    } else if (command == "stay") {
      staying.push_back(fork_to(stay, false));
      tell("stay", staying.back());
    } else if (command == "execute") {
      pid_t pid = fork_to(execute, false);
      tell("execute", pid);
      collect(pid);
    } else if (command == "many") {
      std::vector<pid_t> all;
      for (int i = 0; i < count; i++) all.push_back(fork_to(live_shortly, false));
      for (pid_t pid : all) collect(pid);
      say("many");
    } else if (command == "end") {
      break;
    }
  }
  close(end_of_stay[1]);
  for (pid_t pid : staying) collect(pid);
  say("done");
  return 0;
}
