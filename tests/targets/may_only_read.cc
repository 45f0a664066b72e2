// may_only_read PID COMMAND...: executes a command that dies (SIGSYS) if it does more to the
// process than reading its memory and files, stopping its threads, reading their registers, and
// resuming them. The filter also applies to the command's own children.
//
// A seccomp filter cannot see arguments behind pointers, so a supervisor checks them before the
// kernel reads them: the mode of openat2, and whether an ioctl of a page map protects pages.
#include <cstddef>
#include <cstdint>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <vector>

#include "target.hpp"

using namespace target;

static std::vector<sock_filter> filter;

static void add(uint16_t code, uint32_t k, uint8_t yes = 0, uint8_t no = 0) { filter.push_back({code, yes, no, k}); }
static void load(size_t offset) { add(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)); }
static void answer(uint32_t what) { add(BPF_RET | BPF_K, what); }
static size_t argument(int n) { return offsetof(seccomp_data, args) + static_cast<size_t>(n) * 8; }

// Runs the next `lines` instructions only if the system call has this number.
static void unless_number(long number, uint8_t lines) {
  load(offsetof(seccomp_data, nr));
  add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, lines);
}

static void kill_for(long number) {
  unless_number(number, 1);
  answer(SECCOMP_RET_KILL_PROCESS);
}

// Kills for a call in which the low word of an argument has this value.
static void kill_for_value(long number, int n, uint32_t value) {
  unless_number(number, 3);
  load(argument(n));
  add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
  answer(SECCOMP_RET_KILL_PROCESS);
}

// Kills for a call that opens a file with one of these flags.
static void kill_for_flags(long number, int n) {
  unless_number(number, 3);
  load(argument(n));
  add(BPF_JMP | BPF_JSET | BPF_K, O_WRONLY | O_RDWR | O_CREAT | O_TRUNC, 0, 1);
  answer(SECCOMP_RET_KILL_PROCESS);
}

static void ask_for(long number) {
  unless_number(number, 1);
  answer(SECCOMP_RET_USER_NOTIF);
}

static void make(pid_t target) {
  static const uint32_t allowed[] = {PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_GETREGSET, PTRACE_CONT, PTRACE_DETACH};
  unless_number(SYS_ptrace, 8);
  load(argument(0));
  for (size_t i = 0; i < 5; i++) add(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], static_cast<uint8_t>(5 - i), 0);
  answer(SECCOMP_RET_KILL_PROCESS);
  answer(SECCOMP_RET_ALLOW);
  for (long number : {SYS_process_vm_writev, SYS_process_madvise, SYS_process_mrelease, SYS_pidfd_getfd,
                      SYS_pidfd_send_signal, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_tkill, SYS_move_pages,
                      SYS_migrate_pages, SYS_userfaultfd, SYS_perf_event_open, SYS_bpf, SYS_setns, SYS_open, SYS_creat,
                      SYS_unlink, SYS_unlinkat, SYS_rename, SYS_renameat2, SYS_mkdirat, SYS_mount, SYS_ioperm})
    kill_for(number);
  auto pid = static_cast<uint32_t>(target);
  for (long number : {SYS_kill, SYS_tgkill, SYS_prlimit64, SYS_setpriority, SYS_ioprio_set, SYS_sched_setaffinity,
                      SYS_sched_setscheduler, SYS_sched_setattr, SYS_setpgid})
    kill_for_value(number, 0, pid);
  kill_for_value(SYS_kill, 0, -pid);
  kill_for_value(SYS_setpriority, 1, pid);
  kill_for_flags(SYS_openat, 2);
  ask_for(SYS_openat2);
  ask_for(SYS_ioctl);
  answer(SECCOMP_RET_ALLOW);
}

static void hand_over(int socket, int descriptor) {
  char byte = 0;
  iovec vector{&byte, 1};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof room;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  CHECK(sendmsg(socket, &message, 0) == 1);
}

static int receive(int socket) {
  char byte;
  iovec vector{&byte, 1};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof room;
  CHECK(recvmsg(socket, &message, 0) == 1);
  int descriptor;
  memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
  return descriptor;
}

// Returns true if the call with its pointed-to arguments only reads.
static bool only_reads(const seccomp_notif& call) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/mem", call.pid);
  int memory = open(path, O_RDONLY | O_CLOEXEC);
  uint64_t words[3] = {~0ull, ~0ull, ~0ull};
  auto at = static_cast<off_t>(call.data.args[2]);
  bool result = true;
  if (call.data.nr == SYS_openat2) {
    result = pread(memory, words, sizeof words, at) == sizeof words &&
             !(words[0] & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC));
  } else if (static_cast<uint32_t>(call.data.args[1]) == 0xc0606610) {
    // PAGEMAP_SCAN; PM_SCAN_WP_MATCHING is bit 0 of the flags after the size.
    result = pread(memory, words, sizeof words, at) == sizeof words && !(words[1] & 1);
  } else {
    // _IO(0xAA, ...): userfaultfd(2).
    result = (call.data.args[1] >> 8 & 0xff) != 0xaa;
  }
  close(memory);
  return result;
}

int main(int count, char** words) {
  CHECK(count > 2);
  int both[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both) == 0);
  pid_t child = fork();
  if (child == 0) {
    make(atoi(words[1]));
    sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    long listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    CHECK(listener >= 0);
    hand_over(both[1], static_cast<int>(listener));
    close(static_cast<int>(listener));
    execv(words[2], words + 2);
    _exit(127);
  }
  close(both[1]);
  int listener = receive(both[0]);
  for (;;) {
    pollfd ready{listener, POLLIN, 0};
    int status;
    if (waitpid(child, &status, WNOHANG) == child) {
      if (WIFSIGNALED(status)) fprintf(stderr, "ended by signal %d\n", WTERMSIG(status));
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    if (poll(&ready, 1, 10) <= 0 || !(ready.revents & POLLIN)) continue;
    seccomp_notif call{};
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0) continue;
    if (!only_reads(call)) {
      fprintf(stderr, "call %d (%llx, %llx) writes\n", call.data.nr, call.data.args[0], call.data.args[1]);
      kill(child, SIGKILL);
      continue;
    }
    seccomp_notif_resp response{};
    response.id = call.id;
    response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response);
  }
}
