// Starts a program as the process with a given id. The id must be free, because its former process
// has exited. Exits when the program exits. Arguments: the id, the program and its arguments.
#include <sys/syscall.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdint>

#include "target.hpp"

// This structure is copied from the kernel (clone3(2)), because its header and the C library's
// header cannot be included together.
struct CloneArguments {
  uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size;
};

int main(int count, char** arguments) {
  if (count < 3) return 2;
  pid_t wanted = atoi(arguments[1]);
  CloneArguments how{};
  how.exit_signal = SIGCHLD;
  how.set_tid = reinterpret_cast<uint64_t>(&wanted);
  how.set_tid_size = 1;
  long got = syscall(SYS_clone3, &how, sizeof how);
  if (got == 0) {
    execv(arguments[2], arguments + 2);
    _exit(127);
  }
  if (got < 0) {
    perror("clone3");
    return 1;
  }
  int status = 0;
  waitpid(got, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
