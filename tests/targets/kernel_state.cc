// A process with kernel state that only the process itself should change: huge pages in a heap to
// which it writes and on stacks of sleeping threads, a memory policy, timer slack, scheduling,
// scores, and pending signals.
//
// Protocol: prints "ready", or "missing" if the kernel provides no huge pages. On "c" from stdin,
// checks its own state and answers "done FAILURES".
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

constexpr size_t HUGE = 2 << 20, BYTES = 16 * HUGE;
constexpr int STACKS = 8;
constexpr unsigned long SLACK_NS = 123'000;

static void must(bool is_so) {
  if (!is_so) abort();
}

// Returns memory with the alignment of a huge page.
static char* huge_pages(size_t bytes) {
  void* memory = mmap(nullptr, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  must(memory != MAP_FAILED);
  auto at = (reinterpret_cast<uint64_t>(memory) + HUGE - 1) & ~(HUGE - 1);
  auto* first = reinterpret_cast<char*>(at);
  must(madvise(first, bytes, MADV_HUGEPAGE) == 0);
  memset(first, 0x5a, bytes);
  return first;
}

static volatile uint32_t asleep;

static void* sleep_for_ever(void*) {
  __atomic_add_fetch(&asleep, 1, __ATOMIC_SEQ_CST);
  for (;;) pause();
}

static char* heap;

// Writes one word in each huge page, repeatedly.
static void* write_for_ever(void*) {
  for (uint64_t round = 1;; round++) {
    for (size_t at = 0; at < BYTES; at += HUGE) {
      *reinterpret_cast<volatile uint64_t*>(heap + at + round * 4096 % HUGE) = round;
      usleep(50);
    }
  }
}

static void put(const char* path, const char* text) {
  FILE* file = fopen(path, "w");
  must(file != nullptr && fputs(text, file) >= 0 && fclose(file) == 0);
}

static bool has_huge_pages() {
  FILE* file = fopen("/proc/self/smaps_rollup", "r");
  char line[200];
  long kib = 0;
  while (file != nullptr && fgets(line, sizeof line, file) != nullptr) sscanf(line, "AnonHugePages: %ld", &kib);
  if (file != nullptr) fclose(file);
  return kib * 1024 >= static_cast<long>(BYTES + STACKS * HUGE);
}

static long wrong() {
  long found = 0;
  found += prctl(PR_GET_DUMPABLE) != 1;
  found += prctl(PR_GET_TIMERSLACK) != static_cast<int>(SLACK_NS);
  found += sched_getscheduler(0) != SCHED_BATCH;
  sigset_t waits;
  sigpending(&waits);
  found += sigismember(&waits, SIGUSR2) != 1 || sigismember(&waits, SIGRTMIN) != 1;
  siginfo_t information{};
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, SIGRTMIN);
  found += sigwaitinfo(&one, &information) != SIGRTMIN || information.si_value.sival_int != 77;
  sigqueue(getpid(), SIGRTMIN, information.si_value);
  for (size_t at = 0; at < BYTES; at += 4096) found += heap[at + 2048] != 0x5a;
  return found;
}

int main() {
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR2);
  sigaddset(&blocked, SIGRTMIN);
  sigprocmask(SIG_BLOCK, &blocked, nullptr);
  must(prctl(PR_SET_TIMERSLACK, SLACK_NS) == 0);
  put("/proc/self/oom_score_adj", "17");
  put("/proc/self/coredump_filter", "0x77");
  heap = huge_pages(BYTES);
  // On a machine with only one node, this is also the node of the process.
  unsigned long node = 1;
  syscall(SYS_mbind, heap, BYTES, 1 /* MPOL_PREFERRED */, &node, 64, 0);
  for (int i = 0; i < STACKS; i++) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    must(pthread_attr_setstack(&attributes, huge_pages(HUGE), HUGE) == 0);
    pthread_t thread;
    must(pthread_create(&thread, &attributes, sleep_for_ever, nullptr) == 0);
  }
  while (asleep < STACKS) usleep(100);
  pthread_t writer;
  must(pthread_create(&writer, nullptr, write_for_ever, nullptr) == 0);
  sched_param parameters{};
  must(sched_setscheduler(0, SCHED_BATCH, &parameters) == 0);
  sigval value{};
  value.sival_int = 77;
  must(sigqueue(getpid(), SIGRTMIN, value) == 0 && kill(getpid(), SIGUSR2) == 0);
  for (int i = 0; i < 5000; i++) must(malloc(100) != nullptr);
  bool is_whole = has_huge_pages();
  must(is_whole ? write(1, "ready\n", 6) == 6 : write(1, "missing\n", 8) == 8);
  char c;
  while (read(0, &c, 1) == 1) {
    char line[100];
    int n = snprintf(line, sizeof line, "done %ld\n", wrong());
    must(write(1, line, n) == n);
  }
  _exit(0);
}
