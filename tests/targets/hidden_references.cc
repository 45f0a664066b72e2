// Blocks in use whose addresses are in places that a search for pointers easily misses, and some
// leaked blocks. The program checks the contents of all blocks in use.
//
//   hidden_references [v: another process runs in its memory | s: a seccomp filter kills it for a system
//                      call that a scan makes]
//
// Protocol: prints "ready". On "c" from stdin, overwrites all memory that malloc reuses, checks the
// blocks, and answers "done FAILURES". Exits at the end of input.
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

constexpr size_t SIGNAL_STACK_BYTES = 64 * 1024, THREAD_STACK_BYTES = 256 * 1024;
constexpr int BLOCKS = 40, LOST = 300;

static long failures;
static char* own_stack;  // stack of an exited thread; now holds pointers
static char* packed;     // pointers at odd offsets
static char* shared;     // now read-only
static int ends[2];      // contains an unread pointer
static sigset_t blocked;
static uint64_t expected_signal;  // inverted
static uint64_t expected_message;

__attribute__((noinline)) static void scrub_stack() {
  char room[100000];
  memset(room, 0, sizeof room);
  asm volatile("" ::"r"(room) : "memory");
}

// Returns a block filled with 0x5a, the pattern that check() expects.
__attribute__((noinline)) static char* block(size_t bytes) {
  auto* p = static_cast<char*>(malloc(bytes));
  memset(p, 0x5a, bytes);
  return p;
}
static void check(const char* p, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) failures += p[i] != 0x5a;
}

__attribute__((noinline)) static void set_signal_stack() {
  stack_t stack{};
  stack.ss_sp = malloc(SIGNAL_STACK_BYTES);
  stack.ss_size = SIGNAL_STACK_BYTES;
  memset(stack.ss_sp, 0x5a, SIGNAL_STACK_BYTES);
  if (sigaltstack(&stack, nullptr) != 0) abort();
}

// Runs on the alternate stack, and fills much of it.
static void handle(int) {
  char room[20000];
  memset(room, 0xee, sizeof room);
  asm volatile("" ::"r"(room) : "memory");
}

static volatile uint32_t set, wanted, raised;
static void* with_signal_stack(void*) {
  set_signal_stack();
  scrub_stack();
  __atomic_add_fetch(&set, 1, __ATOMIC_SEQ_CST);
  for (;;) {
    usleep(1000);
    if (wanted > raised) {
      raise(SIGUSR1);
      __atomic_add_fetch(&raised, 1, __ATOMIC_SEQ_CST);
    }
  }
}

static void* nothing(void*) { return nullptr; }

__attribute__((noinline)) static void use_an_old_stack() {
  own_stack = static_cast<char*>(
      mmap(nullptr, THREAD_STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstack(&attributes, own_stack, THREAD_STACK_BYTES);
  pthread_t thread;
  pthread_create(&thread, &attributes, nothing, nullptr);
  pthread_join(thread, nullptr);
  for (int i = 0; i < BLOCKS; i++) reinterpret_cast<char**>(own_stack)[i] = block(200);
}

__attribute__((noinline)) static void hide_the_rest() {
  packed = static_cast<char*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  for (int i = 0; i < BLOCKS; i++) {
    char* p = block(100);
    memcpy(packed + i * 12 + 4, &p, 8);
  }
  shared = static_cast<char*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  for (int i = 0; i < BLOCKS; i++) reinterpret_cast<char**>(shared)[i] = block(300);
  if (mprotect(shared, 4096, PROT_READ) != 0) abort();

  char* p = block(500);
  expected_message = ~reinterpret_cast<uint64_t>(p);
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0 || write(ends[1], &p, 8) != 8) abort();

  p = block(600);
  expected_signal = ~reinterpret_cast<uint64_t>(p);
  sigval value{};
  value.sival_ptr = p;
  if (sigqueue(getpid(), SIGRTMIN, value) != 0) abort();
}

__attribute__((noinline)) static void lose() {
  for (int i = 0; i < LOST; i++) block(64 + i % 400);
}

static int beside(void*) {
  for (;;) pause();
}

static void forbid() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  sock_fprog filter = {sizeof program / sizeof *program, program};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) abort();
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) != 0) abort();
}

static void check_all() {
  for (int i = 0; i < 3000; i++) {
    size_t bytes = i % 50 == 0 ? SIGNAL_STACK_BYTES : i % 1000;
    memset(malloc(bytes), 0xff, bytes);
  }
  for (int i = 0; i < BLOCKS; i++) {
    check(reinterpret_cast<char**>(own_stack)[i], 200);
    char* p;
    memcpy(&p, packed + i * 12 + 4, 8);
    check(p, 100);
    check(reinterpret_cast<char**>(shared)[i], 300);
  }
  char* p = nullptr;
  if (read(ends[0], &p, 8) != 8 || ~expected_message != reinterpret_cast<uint64_t>(p)) failures++;
  check(p, 500);
  siginfo_t info{};
  if (sigwaitinfo(&blocked, &info) != SIGRTMIN || ~expected_signal != reinterpret_cast<uint64_t>(info.si_ptr)) failures++;
  check(static_cast<char*>(info.si_ptr), 600);
  // Blocks that malloc hands out now must not be on the signal stacks.
  constexpr int NEW = 64;
  static unsigned char* fresh[NEW];
  for (auto& f : fresh) {
    f = static_cast<unsigned char*>(malloc(SIGNAL_STACK_BYTES));
    memset(f, 0x77, SIGNAL_STACK_BYTES);
  }
  wanted = raised + 1;
  raise(SIGUSR1);
  while (raised < wanted) usleep(1000);
  for (auto* f : fresh)
    for (size_t i = 0; i < SIGNAL_STACK_BYTES; i++) failures += f[i] != 0x77;
}

int main(int argc, char** argv) {
  char mode = argc > 1 ? argv[1][0] : ' ';
  struct sigaction action{};
  action.sa_handler = handle;
  action.sa_flags = SA_ONSTACK;
  sigaction(SIGUSR1, &action, nullptr);
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGRTMIN);
  sigprocmask(SIG_BLOCK, &blocked, nullptr);
  set_signal_stack();
  pthread_t thread;
  pthread_create(&thread, nullptr, with_signal_stack, nullptr);
  while (set == 0) usleep(100);
  use_an_old_stack();
  hide_the_rest();
  lose();
  if (mode == 'v') {
    static char stack[65536];
    if (clone(beside, stack + sizeof stack, CLONE_VM, nullptr) < 0) return 1;
  }
  if (mode == 's') forbid();
  scrub_stack();
  if (write(1, "ready\n", 6) != 6) return 1;
  char c;
  while (read(0, &c, 1) == 1) {
    check_all();
    char line[100];
    int n = snprintf(line, sizeof line, "done %ld\n", failures);
    if (write(1, line, n) != n) return 1;
  }
  _exit(0);
}
