// Behaviours that once broke an attacher, selected by argument 1. Each works until the end of its
// input, checks itself, and can be asked whether it is usable (usable.hpp).
//   joining      threads that fill their stacks and are joined constantly
//   detached     as many detached threads per second as possible
//   setxid       a thread that sets its effective user id constantly, which briefly stops all
//                other threads
//   locked       all its memory is locked, including future mappings
//   bounded      its address space has a limit, and the program needs nearly all of it
//   leaderless   its first thread has exited
//   coroutines   stacks that are local arrays of main
//   vforks       children that run in its memory for a while
//   closing      closes every descriptor that it does not know, and opens files
//   intruding    a child with fewer privileges that writes to all memory that it shares with its
//                parent
//   sequences    threads inside restartable sequences (rseq(2)) that count by processor without a
//                lock
//   trapping     a seccomp filter traps its system calls, it runs into breakpoints, and sends
//                itself SIGABRT
//   dispatching  answers its system calls itself (syscall user dispatch)
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/rseq.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "usable.hpp"

using namespace target;

static std::atomic<bool> stop{false};

static int hammer(int rounds) {
  int sum = 0;
  for (int i = 0; i < rounds; i++) {
    auto* block = static_cast<unsigned char*>(malloc(static_cast<size_t>(i % 500 + 1)));
    block[0] = static_cast<unsigned char>(i & 1);
    sum += block[0];
    free(block);
  }
  return sum;
}

static void hammer_on() {
  while (!stop) {
    CHECK(hammer(1000) == 500);
    usleep(500);
  }
}

static void* fill_stack(void* argument) {
  constexpr size_t bytes = 200'000;
  volatile unsigned char stack[bytes];
  for (size_t i = 0; i < bytes; i += 512) stack[i] = static_cast<unsigned char>(i >> 9);
  keep(const_cast<unsigned char*>(stack));
  CHECK(hammer(100) == 50);
  for (size_t i = 0; i < bytes; i += 512) CHECK(stack[i] == static_cast<unsigned char>(i >> 9));
  return argument;
}

static void joining() {
  while (!stop) {
    pthread_t threads[32];
    for (pthread_t& thread : threads) CHECK(pthread_create(&thread, nullptr, fill_stack, threads) == 0);
    for (pthread_t& thread : threads) {
      void* result = nullptr;
      CHECK(pthread_join(thread, &result) == 0 && result == threads);
    }
  }
}

static std::atomic<int> under_way{0};
static void* be_gone(void*) {
  CHECK(hammer(20) == 10);
  under_way--;
  return nullptr;
}

static void detached() {
  pthread_attr_t how;
  pthread_attr_init(&how);
  pthread_attr_setdetachstate(&how, PTHREAD_CREATE_DETACHED);
  while (!stop) {
    pthread_t thread;
    if (under_way > 50) {
      usleep(100);
      continue;
    }
    under_way++;
    CHECK(pthread_create(&thread, &how, be_gone, nullptr) == 0);
  }
  while (under_way > 0) usleep(1000);
}

static void setxid() {
  std::thread other(hammer_on);
  while (!stop) {
    CHECK(seteuid(geteuid()) == 0);
    usleep(200);
  }
  other.join();
}

static void locked() {
  if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0) fprintf(stderr, "its memory is not locked: errno %d\n", errno);
  hammer_on();
}

// Returns a lower bound for the remaining address space in MiB.
static size_t room_mib() {
  size_t mib = 4096;
  for (size_t step = 2048; step > 0; step /= 2) {
    void* area = mmap(nullptr, mib << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (area != MAP_FAILED) {
      munmap(area, mib << 20);
      mib += step;
    } else {
      mib -= step;
    }
  }
  return mib;
}

static void bounded() {
  rlimit limit{3'000'000'000, 3'000'000'000};
  CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
  hammer_on();
  // An attach may leave only a little address space mapped.
  CHECK(room_mib() > 2000);
}

static void* serve_for_main(void*) {
  serve();
  stop = true;
  return nullptr;
}
static void* outlive(void*) {
  hammer_on();
  return nullptr;
}

static void leaderless() {
  pthread_t server, worker;
  CHECK(pthread_create(&server, nullptr, serve_for_main, nullptr) == 0);
  CHECK(pthread_create(&worker, nullptr, outlive, nullptr) == 0);
  pthread_exit(nullptr);
}

static ucontext_t main_context, contexts[4];
static void run_coroutine(int own) {
  for (;;) {
    CHECK(hammer(10) == 5);
    swapcontext(&contexts[own], &contexts[(own + 1) % 4]);
    if (stop) swapcontext(&contexts[own], &main_context);
  }
}

// Data of the program is between, below and above the stacks.
static void coroutines() {
  struct Area {
    unsigned char data[48 * 1024];
    alignas(16) unsigned char stack[16 * 1024];
  };
  static_assert(sizeof(Area) % 16 == 0);
  Area areas[4];
  for (int i = 0; i < 4; i++) {
    memset(areas[i].data, 0x50 + i, sizeof areas[i].data);
    CHECK(getcontext(&contexts[i]) == 0);
    contexts[i].uc_stack.ss_sp = areas[i].stack;
    contexts[i].uc_stack.ss_size = sizeof areas[i].stack;
    contexts[i].uc_link = &main_context;
    makecontext(&contexts[i], reinterpret_cast<void (*)()>(run_coroutine), 1, i);
  }
  swapcontext(&main_context, &contexts[0]);
  for (int i = 0; i < 4; i++)
    for (unsigned char byte : areas[i].data) CHECK(byte == 0x50 + i);
}

static void vforks() {
  std::thread other(hammer_on);
  while (!stop) {
    pid_t child = vfork();
    if (child == 0) {
      usleep(100'000);
      _exit(0);
    }
    int status = 1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
  }
  other.join();
}

static void closing() {
  char path[] = "/tmp/adversary-XXXXXX", text[] = "what is in this file stays as it is";
  int made = mkstemp(path);
  CHECK(made >= 0 && write(made, text, sizeof text) == sizeof text);
  std::thread other([] {
    while (!stop) {
      std::lock_guard quiet(using_everything);
      syscall(SYS_close_range, 3, ~0u, 0);
    }
  });
  while (!stop) {
    std::lock_guard quiet(using_everything);
    int file = open(path, O_RDWR | O_CLOEXEC);
    char found[100] = {};
    CHECK(file >= 0 && read(file, found, sizeof found) == sizeof text && strcmp(found, text) == 0);
    CHECK(hammer(100) == 50);
    // If the other thread is not scheduled for a long time, this thread would exceed the limit on
    // open files.
    if (file > 500) syscall(SYS_close_range, 3, ~0u, 0);
  }
  other.join();
  unlink(path);
}

static void intrude() {
  if (geteuid() == 0) CHECK(setgroups(0, nullptr) == 0 && setgid(65534) == 0 && setuid(65534) == 0);
  FILE* maps = fopen("/proc/self/maps", "r");
  if (!maps) _exit(0);
  char line[512];
  while (fgets(line, sizeof line, maps)) {
    unsigned long start, end;
    char mode[5];
    if (sscanf(line, "%lx-%lx %4s", &start, &end, mode) != 3) continue;
    if (mode[1] != 'w' || mode[3] != 's') continue;
    // Uses only populated memory, and no more than it can write quickly.
    for (unsigned long page = start; page < end && page < start + (4 << 20); page += 4096)
      for (unsigned long at = page; at < page + 4096; at += 8) *reinterpret_cast<volatile unsigned long*>(at) = ~0ul / 3;
  }
  _exit(0);
}

static void intruding() {
  std::thread other(hammer_on);
  while (!stop) {
    pid_t child = fork();
    if (child == 0) intrude();
    int status = 1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    usleep(5000);
  }
  other.join();
}

static constexpr int processors = 512;
static volatile uint64_t counted[processors];

// Adds 1 to the counter of the current processor. Returns false if it was interrupted and added
// nothing. If the thread is made to run other code in the middle, it would add to a stale value on
// return.
[[gnu::noinline]] static bool count_here(struct rseq* area) {
  uint32_t processor = area->cpu_id_start;
  CHECK(processor < processors);
  volatile uint64_t* counter = &counted[processor];
  asm goto(
      ".pushsection .data.rseq, \"aw\"\n"
      ".balign 32\n"
      "3: .long 0, 0\n"
      ".quad 1f, 2f - 1f, 4f\n"
      ".popsection\n"
      "leaq 3b(%%rip), %%rax\n"
      "movq %%rax, %[descriptor]\n"
      "1: cmpl %[processor], %[current]\n"
      "jne 4f\n"
      "movq (%[counter]), %%rax\n"
      "movl $200, %%ecx\n"
      "5: pause\n"
      "decl %%ecx\n"
      "jnz 5b\n"
      "incq %%rax\n"
      "movq %%rax, (%[counter])\n"
      "2:\n"
      ".pushsection .text.rseq_abort, \"ax\"\n"
      ".byte 0x0f, 0xb9, 0x3d\n"
      ".long 0x53053053\n"
      "4: jmp %l[aborted]\n"
      ".popsection\n"
      :
      : [descriptor] "m"(area->rseq_cs), [processor] "r"(processor), [current] "m"(area->cpu_id),
        [counter] "r"(counter)
      : "rax", "rcx", "memory", "cc"
      : aborted);
  return true;
aborted:
  return false;
}

static void sequences() {
  CHECK(__rseq_size > 0);
  std::thread threads[4];
  std::atomic<uint64_t> sum{0};
  for (auto& thread : threads)
    thread = std::thread([&] {
      auto* area = reinterpret_cast<struct rseq*>(static_cast<char*>(__builtin_thread_pointer()) + __rseq_offset);
      uint64_t own = 0;
      while (!stop) {
        own += count_here(area);
        if (own % 64 == 0) CHECK(hammer(10) == 5);
      }
      sum += own;
    });
  for (auto& thread : threads) thread.join();
  uint64_t all = 0;
  for (uint64_t count : counted) all += count;
  CHECK(all == sum);
}

constexpr long answer = 0x5eed;
static volatile uint64_t traps;
static volatile char dispatches;

static void trap(int signal, siginfo_t* info, void* context) {
  dispatches = 0;  // SYSCALL_DISPATCH_FILTER_ALLOW
  traps = traps + 1;
  if (signal == SIGSYS && info->si_syscall == SYS_getppid)
    static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RAX] = answer;
}

static void catch_traps() {
  struct sigaction action {};
  action.sa_sigaction = trap;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  for (int signal : {SIGSYS, SIGTRAP, SIGABRT}) CHECK(sigaction(signal, &action, nullptr) == 0);
}

static long ask() {
  long result;
  asm volatile("syscall" : "=a"(result) : "a"(SYS_getppid) : "rcx", "r11", "memory");
  return result;
}

// Answers like serve(), but only checks for a question occasionally, because a tracer would prefer
// a waiting thread.
static void serve_between() {
  char question = 0;
  ssize_t length = read(0, &question, 1);
  if (length == 1 && question == 'u') {
    use_everything();
    say("usable");
  }
  stop = length == 0 || (length == 1 && question != 'u');
}

// The only thread. The handler of each signal runs before the thread's next instruction, and the
// handler alone determines the result.
static void trapping() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{sizeof filter / sizeof *filter, filter};
  CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
  say("ready");
  for (uint64_t round = 0; !stop; round++) {
    uint64_t before = traps;
    if (round % 3 == 0) CHECK(ask() == answer);
    if (round % 3 == 1) asm volatile("int3" ::: "memory");
    if (round % 3 == 2) CHECK(raise(SIGABRT) == 0);
    CHECK(traps == before + 1);
    if (round % 16 == 0) CHECK(hammer(2) == 1);
    if (round % 64 == 0) serve_between();
  }
}

static void dispatching() {
  constexpr int set_dispatch = 59;  // PR_SET_SYSCALL_USER_DISPATCH, which older headers lack
  CHECK(prctl(set_dispatch, 1, 0, 0, &dispatches) == 0);
  say("ready");
  for (uint64_t round = 0; !stop; round++) {
    uint64_t before = traps;
    dispatches = 1;
    CHECK(ask() == answer && traps == before + 1);
    if (round % 16 == 0) CHECK(hammer(2) == 1);
    if (round % 64 == 0) serve_between();
  }
}

int main(int, char** arguments) {
  std::string what = arguments[1];
  if (what == "leaderless") {
    say("ready");
    leaderless();
  }
  if (what == "trapping" || what == "dispatching") {
    catch_traps();
    CHECK(fcntl(0, F_SETFL, O_NONBLOCK) == 0);
    what == "trapping" ? trapping() : dispatching();
    return 0;
  }
  std::thread reader([] {
    serve();
    stop = true;
  });
  say("ready");
  if (what == "joining") joining();
  if (what == "detached") detached();
  if (what == "setxid") setxid();
  if (what == "locked") locked();
  if (what == "bounded") bounded();
  if (what == "coroutines") coroutines();
  if (what == "vforks") vforks();
  if (what == "closing") closing();
  if (what == "intruding") intruding();
  if (what == "sequences") sequences();
  reader.join();
}
