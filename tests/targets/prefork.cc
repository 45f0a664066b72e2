// A server that forks workers in every possible way. Input: 'f' forks one worker of each kind and
// prints "child PID" for each; 'v' creates a worker by vfork, which prints this line itself and
// executes its program after one more byte; 'e' stops all workers. The server exits at the end of
// the input.
//
// Each worker allocates, checks its blocks, and on exit checks that its slot for malloc contains
// malloc. Argument "worker": a worker that was executed after a vfork.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <thread>

#include "target.hpp"

using namespace target;

static int end_of_work[2], result[2];

static void* in_slot_of_malloc() {
  void* value;
  asm volatile("movq malloc@GOTPCREL(%%rip), %0" : "=r"(value));
  return value;
}

static void check_slot() {
  CHECK(in_slot_of_malloc() == dlsym(RTLD_DEFAULT, "malloc"));
}

[[gnu::noinline]] static void work_of_child(unsigned char mark) {
  unsigned char* blocks[32];
  for (unsigned i = 0; i < 32; i++) {
    blocks[i] = static_cast<unsigned char*>(malloc(100 + i * 17));
    CHECK(blocks[i] != nullptr);
    memset(blocks[i], mark, 100 + i * 17);
  }
  for (unsigned i = 0; i < 32; i++) {
    for (unsigned j = 0; j < 100 + i * 17; j++) CHECK(blocks[i][j] == mark);
    free(blocks[i]);
  }
}

// Works until the server closes the pipe.
[[noreturn]] static void be_worker() {
  fcntl(end_of_work[0], F_SETFL, O_NONBLOCK);
  char byte;
  for (unsigned char mark = 1;; mark++) {
    work_of_child(mark);
    usleep(1000);
    ssize_t got = read(end_of_work[0], &byte, 1);
    if (got == 0) break;
    CHECK(got < 0 && (errno == EAGAIN || errno == EINTR));
  }
  check_slot();
  CHECK(write(result[1], "k", 1) == 1);
  _exit(0);
}

static void tell(pid_t pid) {
  CHECK(pid > 0);
  char line[32];
  snprintf(line, sizeof line, "child %d", pid);
  say(line);
}

static void become_worker() {
  close(end_of_work[1]);
  be_worker();
}

// Until the child executes the program, it runs in the parent's memory, and the parent is
// suspended.
static pid_t vfork_one(const char* program, bool waits) {
  char ends[16], results[16], last[16];
  snprintf(ends, sizeof ends, "%d", end_of_work[0]);
  snprintf(results, sizeof results, "%d", result[1]);
  snprintf(last, sizeof last, "%d", end_of_work[1]);
  pid_t pid = vfork();
  if (pid == 0) {
    char byte;
    if (waits) {
      tell(getpid());
      CHECK(read(0, &byte, 1) == 1);
    }
    execl(program, program, "worker", ends, results, last, nullptr);
    _exit(9);
  }
  return pid;
}

static void fork_one_of_each(const char* program) {
  pid_t pid = fork();
  if (pid == 0) become_worker();
  tell(pid);

  // Forks without glibc's fork handlers.
  pid = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
  if (pid == 0) become_worker();
  tell(pid);

  int grandchild[2];
  CHECK(pipe(grandchild) == 0);
  pid_t between = fork();
  if (between == 0) {
    pid_t last = fork();
    if (last == 0) become_worker();
    CHECK(write(grandchild[1], &last, sizeof last) == sizeof last);
    _exit(0);
  }
  CHECK(waitpid(between, nullptr, 0) == between);
  CHECK(read(grandchild[0], &pid, sizeof pid) == sizeof pid);
  close(grandchild[0]);
  close(grandchild[1]);
  tell(pid);

  std::thread([] {
    pid_t child = fork();
    if (child == 0) become_worker();
    tell(child);
  }).join();

  tell(vfork_one(program, false));
}

int main(int count, char** arguments) {
  if (count == 5 && strcmp(arguments[1], "worker") == 0) {
    end_of_work[0] = atoi(arguments[2]);
    result[1] = atoi(arguments[3]);
    close(atoi(arguments[4]));
    be_worker();
  }
  CHECK(pipe(end_of_work) == 0 && pipe(result) == 0);
  say("ready");
  int children = 0;
  char command;
  for (;;) {
    ssize_t got = read(0, &command, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    if (command == 'f') {
      fork_one_of_each(arguments[0]);
      children += 5;
      work_of_child(0);
    } else if (command == 'v') {
      CHECK(vfork_one(arguments[0], true) > 0);
      children++;
    } else if (command == 'e') {
      close(end_of_work[1]);
      close(result[1]);
      // A failed worker prints nothing, so its pipe reaches end of file.
      for (int i = 0; i < children; i++) {
        char ok;
        CHECK(read(result[0], &ok, 1) == 1 && ok == 'k');
      }
      check_slot();
      say("done");
    }
  }
}
