// May not change the protection of its memory.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <thread>

#include "target.hpp"

using namespace target;

static void forbid_mprotect() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mprotect, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog filter = {sizeof program / sizeof *program, program};
  CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  // For all threads.
  CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) == 0);
  CHECK(mprotect(reinterpret_cast<void*>(4096), 4096, PROT_READ) == -1 && errno == EPERM);
}

int main() {
  std::thread other([] { wait_for_byte(); });
  forbid_mprotect();
  say("ready");
  other.join();
  for (int i = 0; i < 9; i++) keep(malloc(300));
  done();
}
