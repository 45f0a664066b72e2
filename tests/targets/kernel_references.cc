// Blocks in use whose addresses are only in the kernel, or in memory that the program itself cannot
// access, and some leaked blocks. The program checks all blocks in use.
//
//   kernel_references [MODE]
//
// Without a mode: an eventfd's counter, execute-only and inaccessible memory, written pages of a
// private file mapping that is now read-only, pages of a file that were not touched through this
// mapping, the frame pointer in a jmp_buf, set_tid_address, set_robust_list. `q`: mq_notify; `m`: a
// message in a queue; `s`: a detached System V segment; `r`: rseq, if the C library has not
// registered one.
//
// Protocol: prints "ready". On "c" from stdin, overwrites all memory that malloc reuses, checks the
// blocks, and answers "done FAILURES". Exits at the end of input.
#include <fcntl.h>
#include <linux/rseq.h>
#include <mqueue.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

constexpr int LOST = 300, KEPT = 16;
constexpr size_t PAGE = 4096, USED = 200;

static long failures;
static uint64_t hidden[KEPT];  // inverted addresses
static int count;
static int counter = -1, segment = -1;
static jmp_buf saved;
static mqd_t queue = -1;
static volatile uint32_t thread_is_ready, thread_may_end;

__attribute__((noinline)) static void scrub_stack() {
  char room[100000];
  memset(room, 0, sizeof room);
  asm volatile("" ::"r"(room) : "memory");
}

// Returns a block filled with its own bytes.
__attribute__((noinline)) static void* block() {
  void* p = malloc(USED);
  memset(p, 0x5a, USED);
  hidden[count++] = ~reinterpret_cast<uint64_t>(p);
  return p;
}

__attribute__((noinline)) static void in_mappings() {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
  auto place = [](void* memory) {
    if (memory == MAP_FAILED) abort();
    return static_cast<void**>(memory);
  };
  void** executed = place(mmap(nullptr, PAGE, PROT_READ | PROT_WRITE, flags, -1, 0));
  executed[1] = block();
  if (mprotect(executed, PAGE, PROT_EXEC) != 0) abort();
  void** closed = place(mmap(nullptr, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  closed[1] = block();
  if (mprotect(closed, PAGE, PROT_NONE) != 0) abort();

  char name[] = "/tmp/memhook-references-XXXXXX";
  int file = mkstemp(name);
  if (file < 0 || unlink(name) != 0 || ftruncate(file, 2 * PAGE) != 0) abort();
  void** own = place(mmap(nullptr, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0));
  own[1] = block();
  if (mprotect(own, 2 * PAGE, PROT_READ) != 0) abort();
  close(file);

  // The page is written through the descriptor, so it is in no page table.
  int memory = memfd_create("references", 0);
  if (ftruncate(memory, 64 * PAGE) != 0) abort();
  place(mmap(nullptr, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0));
  void* p = block();
  if (pwrite(memory, &p, 8, 5 * PAGE + 16) != 8) abort();
  close(memory);
}

// Calls setjmp with the address of a block as frame pointer.
__attribute__((noinline)) static void in_jump() {
  uint64_t inverted = ~reinterpret_cast<uint64_t>(block());
  void* place = &saved;
  asm volatile(
      "sub $256, %%rsp; push %%rbp; mov %%rax, %%rbp; not %%rbp; call _setjmp; pop %%rbp; add $256, %%rsp"
      : "+a"(inverted), "+D"(place)
      :
      : "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory", "cc");
}

struct Robust {
  void* next;
  long futex_offset;
  void* pending;
};

__attribute__((noinline)) static void give_to_kernel() {
  if (syscall(SYS_set_tid_address, block()) < 0) abort();
  auto* head = static_cast<Robust*>(block());
  *head = {head, 0, nullptr};
  if (syscall(SYS_set_robust_list, head, sizeof *head) != 0) abort();
}

static void* known_to_kernel(void*) {
  give_to_kernel();
  scrub_stack();
  thread_is_ready = 1;
  while (!thread_may_end) usleep(1000);
  // Does not use pthread_exit, because set_tid_address has replaced the word of the C library that
  // the kernel would clear.
  syscall(SYS_exit, 0);
  return nullptr;
}

__attribute__((noinline)) static void in_counter() {
  counter = eventfd(0, 0);
  auto value = reinterpret_cast<uint64_t>(block());
  if (write(counter, &value, 8) != 8) abort();
}

__attribute__((noinline)) static void in_queue(char mode) {
  char name[60];
  snprintf(name, sizeof name, "/memhook-references-%d", getpid());
  mq_attr attributes{};
  attributes.mq_maxmsg = 1;
  attributes.mq_msgsize = 8;
  queue = mq_open(name, O_CREAT | O_RDWR, 0600, &attributes);
  if (queue < 0 || mq_unlink(name) != 0) abort();
  void* p = block();
  if (mode == 'q') {
    sigevent event{};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGURG;
    event.sigev_value.sival_ptr = p;
    if (mq_notify(queue, &event) != 0) abort();
  } else if (mq_send(queue, reinterpret_cast<char*>(&p), 8, 0) != 0) {
    abort();
  }
}

__attribute__((noinline)) static void in_segment() {
  segment = shmget(IPC_PRIVATE, PAGE, IPC_CREAT | 0600);
  void* place = shmat(segment, nullptr, 0);
  if (segment < 0 || place == reinterpret_cast<void*>(-1)) abort();
  *static_cast<void**>(place) = block();
  if (shmdt(place) != 0) abort();
}

// The kernel writes to the block whenever the thread resumes.
__attribute__((noinline)) static void in_rseq() {
  void* p = aligned_alloc(32, USED);
  memset(p, 0x5a, USED);
  memset(p, 0, 32);
  hidden[count++] = ~reinterpret_cast<uint64_t>(p);
  if (syscall(SYS_rseq, p, 32, 0, 0x53053053) != 0) abort();
}

__attribute__((noinline)) static void lose() {
  for (int i = 0; i < LOST; i++) memset(malloc(64 + i % 400), 0x5a, 64);
}

__attribute__((noinline)) static void check_all() {
  for (int i = 0; i < 3000; i++) {
    size_t bytes = i % 3 == 0 ? USED : i % 1000;
    memset(malloc(bytes), 0xff, bytes);
  }
  thread_may_end = 1;
  usleep(50000);
  for (int i = 0; i < count; i++) {
    auto* p = reinterpret_cast<unsigned char*>(~hidden[i]);
    // The kernel or this program uses the first 32 bytes of some blocks.
    for (size_t k = 32; k < USED; k++) failures += p[k] != 0x5a;
  }
}

int main(int argc, char** argv) {
  char mode = argc > 1 ? argv[1][0] : ' ';
  switch (mode) {
    case 'q':
    case 'm': in_queue(mode); break;
    case 's': in_segment(); break;
    case 'r': in_rseq(); break;
    default: {
      in_mappings();
      in_jump();
      in_counter();
      pthread_t thread;
      if (pthread_create(&thread, nullptr, known_to_kernel, nullptr) != 0) return 1;
      while (!thread_is_ready) usleep(100);
    }
  }
  lose();
  scrub_stack();
  if (write(1, "ready\n", 6) != 6) return 1;
  char c;
  while (read(0, &c, 1) == 1) {
    check_all();
    char line[100];
    int n = snprintf(line, sizeof line, "done %ld\n", failures);
    if (write(1, line, n) != n) return 1;
  }
  if (segment >= 0) shmctl(segment, IPC_RMID, nullptr);
  _exit(0);
}
