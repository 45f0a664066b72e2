// Blocks in use whose addresses exist in only one kind of location or encoding, and some leaked
// blocks. The program checks all blocks in use.
//
//   disguised_pointers KIND
//
// KIND: see `kinds` at the end.
//
// Protocol: prints "ready", or "missing" if the machine does not support the kind. On "c" from
// stdin, overwrites all memory that malloc reuses, checks the blocks, and answers "done FAILURES".
// Exits at the end of input.
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

constexpr int LOST = 300, KEPT = 16;
constexpr size_t PAGE = 4096, USED = 200;
// An address combined with this key does not look like an address.
constexpr uint64_t KEY = 0x9e37'79b9'7f4a'7c15;

static long failures;
static uint64_t hidden[64];
static int count;
static volatile uint32_t threads_ready;

static void must(bool is_so) {
  if (!is_so) abort();
}

static void missing() {
  must(write(1, "missing\n", 8) == 8);
  _exit(0);
}

__attribute__((noinline)) static void scrub_stack() {
  char room[100000];
  memset(room, 0, sizeof room);
  asm volatile("" ::"r"(room) : "memory");
}

// Returns a block filled with its own bytes.
__attribute__((noinline)) static uint64_t block() {
  void* p = malloc(USED);
  memset(p, 0x5a, USED);
  auto address = reinterpret_cast<uint64_t>(p);
  hidden[count++] = address ^ KEY;
  return address;
}

static char* pages(size_t bytes, int flags = MAP_PRIVATE, void* place = nullptr) {
  flags |= MAP_ANONYMOUS | (place == nullptr ? 0 : MAP_FIXED);
  void* memory = mmap(place, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  must(memory != MAP_FAILED);
  return static_cast<char*>(memory);
}

static uint64_t* words() { return reinterpret_cast<uint64_t*>(pages(PAGE)); }

template <typename Form>
static void in_words(Form form) {
  uint64_t* place = words();
  for (int i = 0; i < KEPT; i++) place[i] = form(block());
}

// These pointers are in memory, with other encodings.
static void low_bits() {
  in_words([](uint64_t p) { return p | 5; });
}
static void high_bits() {
  in_words([](uint64_t p) { return p | 0xbeefULL << 48; });
}
static void shifted() {
  in_words([](uint64_t p) { return p << 16 | 0xbeef; });
}
static void past_the_end() {
  in_words([](uint64_t p) { return p + USED; });
}
static void complemented() {
  in_words([](uint64_t p) { return ~p; });
}
static void combined() {
  in_words([](uint64_t p) { return p ^ KEY; });
}
static void swapped() {
  in_words([](uint64_t p) { return __builtin_bswap64(p); });
}
static void before_the_start() {
  in_words([](uint64_t p) { return p - USED; });
}
static void halves() {
  auto* low = reinterpret_cast<uint32_t*>(pages(PAGE));
  auto* high = reinterpret_cast<uint32_t*>(pages(PAGE));
  for (int i = 0; i < KEPT; i++) {
    uint64_t p = block();
    low[i] = static_cast<uint32_t>(p);
    high[i] = static_cast<uint32_t>(p >> 32);
  }
}
static void offsets() {
  auto* place = reinterpret_cast<uint32_t*>(pages(PAGE));
  // The base is the address of a block that is in use.
  static char* base;
  base = static_cast<char*>(malloc(USED));
  for (int i = 0; i < KEPT; i++) place[i] = static_cast<uint32_t>(block() - reinterpret_cast<uint64_t>(base));
}
// This kind needs a heap with addresses of four bytes, so the program is linked to a fixed address.
static void four_bytes() {
  char* place = pages(PAGE);
  for (int i = 0; i < KEPT; i++) {
    uint64_t p = block();
    if (p >> 32 != 0) missing();
    memset(place + i * 7, 0xee, 7);
    memcpy(place + i * 7, &p, 4);
  }
}
static void six_bytes() {
  char* place = pages(PAGE);
  for (int i = 0; i < KEPT; i++) {
    uint64_t p = block();
    memset(place + i * 7, 0xee, 7);
    memcpy(place + i * 7, &p, 6);
  }
  // The last bytes of a mapping, with no mapping after it.
  char* last = pages(2 * PAGE);
  must(munmap(last + PAGE, PAGE) == 0);
  uint64_t p = block();
  memcpy(last + PAGE - 6, &p, 6);
}
static void packed() {
  char* place = pages(PAGE);
  for (int i = 0; i < KEPT; i++) {
    uint64_t p = block();
    memset(place + i * 11, 0xee, 11);
    memcpy(place + i * 11 + 3, &p, 8);
  }
}

// These pointers are in packed rows across the boundary of two mappings.
struct __attribute__((packed)) Row {
  uint16_t number;
  uint64_t address;
  char kind;
};
static Row rows[20000];

static bool is_edge(const char* address) {
  constexpr size_t MOST = 1 << 16;
  char* maps = pages(MOST);
  int file = open("/proc/self/maps", O_RDONLY);
  size_t length = 0;
  for (ssize_t n; length + 1 < MOST && (n = read(file, maps + length, MOST - 1 - length)) > 0;) length += n;
  close(file);
  maps[length] = 0;
  char begin[40];
  snprintf(begin, sizeof begin, "\n%lx-", reinterpret_cast<uint64_t>(address));
  return strstr(maps, begin) != nullptr;
}

static void over_the_end_of_a_file() {
  auto* first = reinterpret_cast<char*>(rows);
  char* edge = first + (PAGE - reinterpret_cast<uint64_t>(first) % PAGE);
  must(is_edge(edge));
  uint64_t p = block();
  memcpy(edge - 3, &p, 8);
  for (int i = 1; i < KEPT; i++) {
    p = block();
    memcpy(edge + i * PAGE - i % 8, &p, 8);
  }
}
static void over_mappings() {
  for (int before = 1; before < 8; before++) {
    char* place = pages(2 * PAGE);
    pages(PAGE, MAP_SHARED, place + PAGE);
    must(is_edge(place + PAGE));
    uint64_t p = block();
    memcpy(place + PAGE - before, &p, 8);
  }
}

// These pointers are in registers of sleeping threads.
static void* in_a_register(void*) {
  uint64_t inverted = ~block();
  scrub_stack();
  asm volatile(
      "push %%rbx; push %%rbp; mov %%rax, %%rbx; not %%rbx; xor %%eax, %%eax\n"
      "lock incl %[ready]\n"
      "1: mov $34, %%eax; syscall; jmp 1b"
      : "+a"(inverted), [ready] "+m"(threads_ready)
      :
      : "rbx", "rcx", "r11", "memory");
  return nullptr;
}
static void* in_vector_registers(void*) {
  alignas(16) char bytes[32];
  uint64_t first = block(), second = block();
  memset(bytes, 0xee, sizeof bytes);
  memcpy(bytes + 8, &first, 8);
  memcpy(bytes + 16 + 3, &second, 8);
  asm volatile("" ::"r"(bytes) : "memory");
  asm volatile("movdqa %0, %%xmm9; movdqa %1, %%xmm14" ::"m"(bytes[0]), "m"(bytes[16]) : "xmm9", "xmm14", "memory");
  memset(bytes, 0, sizeof bytes);
  first = second = 0;
  asm volatile("" ::"r"(bytes), "r"(&first), "r"(&second) : "memory");
  scrub_stack();
  asm volatile(
      "xor %%ebx, %%ebx; xor %%ebp, %%ebp; xor %%edx, %%edx; xor %%esi, %%esi; xor %%edi, %%edi\n"
      "xor %%r8d, %%r8d; xor %%r9d, %%r9d; xor %%r10d, %%r10d; xor %%r12d, %%r12d; xor %%r13d, %%r13d; xor %%r14d, %%r14d; xor %%r15d, %%r15d\n"
      "pxor %%xmm0, %%xmm0; movdqa %%xmm0, %%xmm1; movdqa %%xmm0, %%xmm2; movdqa %%xmm0, %%xmm3; movdqa %%xmm0, %%xmm4\n"
      "lock incl %[ready]\n"
      "1: mov $34, %%eax; syscall; jmp 1b"
      : [ready] "+m"(threads_ready)
      :
      : "rax", "rcx", "r11", "memory");
  return nullptr;
}
static void sleeping(void* (*function)(void*), int threads) {
  for (int i = 0; i < threads; i++) {
    pthread_t thread;
    must(pthread_create(&thread, nullptr, function, nullptr) == 0);
    while (threads_ready <= static_cast<uint32_t>(i)) usleep(100);
  }
}
static void registers() { sleeping(in_a_register, 3); }
static void vector_registers() { sleeping(in_vector_registers, 3); }

static void thread_data() {
  // The first 32 values are in the thread's own structure.
  for (int i = 0; i < 48; i++) {
    pthread_key_t key;
    must(pthread_key_create(&key, nullptr) == 0);
    must(pthread_setspecific(key, reinterpret_cast<void*>(block())) == 0);
  }
}

// In the kernel.
static void epoll_data() {
  int all = epoll_create1(0);
  for (int i = 0; i < KEPT; i++) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = block();
    must(epoll_ctl(all, EPOLL_CTL_ADD, eventfd(0, 0), &event) == 0);
  }
}
static void timer_values() {
  for (int i = 0; i < KEPT; i++) {
    sigevent event{};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGURG;
    event.sigev_value.sival_ptr = reinterpret_cast<void*>(block());
    int timer;
    must(syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer) == 0);
  }
}
static void queued_signals() {
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGRTMIN);
  sigprocmask(SIG_BLOCK, &blocked, nullptr);
  for (int i = 0; i < KEPT; i++) {
    sigval value{};
    value.sival_ptr = reinterpret_cast<void*>(block());
    must(sigqueue(getpid(), SIGRTMIN, value) == 0);
  }
}
static void in_pipe() {
  int ends[2];
  must(pipe(ends) == 0);
  for (int i = 0; i < KEPT; i++) {
    uint64_t p = block();
    must(write(ends[1], "abc", 3) == 3 && write(ends[1], &p, 8) == 8);
  }
}
static void in_socket() {
  int ends[2];
  must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  for (int i = 0; i < KEPT; i++) {
    uint64_t p = block();
    must(write(ends[1], "abc", 3) == 3 && write(ends[1], &p, 8) == 8);
  }
}
// A pipe in transit in a socket, which has no descriptor during that time.
static void in_flight() {
  int ends[2], carried[2];
  must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && pipe(carried) == 0);
  uint64_t p = block();
  must(write(carried[1], &p, 8) == 8);
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof carried)] = {};
  char byte = 'x';
  iovec vector = {&byte, 1};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  *header = {CMSG_LEN(sizeof carried), SOL_SOCKET, SCM_RIGHTS};
  memcpy(CMSG_DATA(header), carried, sizeof carried);
  must(sendmsg(ends[1], &message, 0) == 1);
  must(close(carried[0]) == 0 && close(carried[1]) == 0);
}
static void asynchronous_input() {
  aio_context_t context = 0;
  if (syscall(SYS_io_setup, 8, &context) != 0) missing();
  iocb request{};
  request.aio_lio_opcode = 5;  // IOCB_CMD_POLL
  request.aio_fildes = static_cast<uint32_t>(eventfd(0, 0));
  request.aio_buf = EPOLLIN;
  request.aio_data = block();
  iocb* list = &request;
  must(syscall(SYS_io_submit, context, 1, &list) == 1);
  request = {};
  asm volatile("" ::"r"(&request) : "memory");
}
static void ring() {
  io_uring_params parameters{};
  if (syscall(SYS_io_uring_setup, 8, &parameters) < 0) missing();
  // Its contents are unknown, so any value is possible.
  block();
}
static void by_another_process() {
  char* place = pages(64 * PAGE, MAP_SHARED);
  int ends[2];
  must(pipe(ends) == 0);
  uint64_t p = block();
  pid_t child = fork();
  if (child == 0) {
    memcpy(place + 40 * PAGE + 16, &p, 8);
    _exit(0);
  }
  must(waitpid(child, nullptr, 0) == child);
}
static void in_a_file() {
  int file = memfd_create("addresses", 0);
  for (int i = 0; i < KEPT; i++) {
    uint64_t p = block();
    must(write(file, &p, 8) == 8);
  }
}

struct Kind {
  const char* name;
  void (*hide)();
};
static const Kind kinds[] = {
    {"low bits", low_bits},
    {"high bits", high_bits},
    {"shifted", shifted},
    {"past the end", past_the_end},
    {"six bytes", six_bytes},
    {"four bytes", four_bytes},
    {"packed", packed},
    {"over the end of a file", over_the_end_of_a_file},
    {"over mappings", over_mappings},
    {"registers", registers},
    {"vector registers", vector_registers},
    {"thread data", thread_data},
    {"epoll", epoll_data},
    {"timers", timer_values},
    {"queued signals", queued_signals},
    {"pipe", in_pipe},
    {"socket", in_socket},
    {"in flight", in_flight},
    {"aio", asynchronous_input},
    {"io_uring", ring},
    {"by another process", by_another_process},
    {"complemented", complemented},
    {"combined", combined},
    {"swapped", swapped},
    {"halves", halves},
    {"offsets", offsets},
    {"before the start", before_the_start},
    {"file", in_a_file},
};

__attribute__((noinline)) static void lose() {
  for (int i = 0; i < LOST; i++) memset(malloc(64 + i % 400), 0x5a, 64);
}

__attribute__((noinline)) static void check_all() {
  for (int i = 0; i < 3000; i++) {
    size_t bytes = i % 3 == 0 ? USED : i % 1000;
    memset(malloc(bytes), 0xff, bytes);
  }
  for (int i = 0; i < count; i++) {
    auto* p = reinterpret_cast<unsigned char*>(hidden[i] ^ KEY);
    for (size_t k = 0; k < USED; k++) failures += p[k] != 0x5a;
  }
}

int main(int, char** argv) {
  const Kind* wanted = nullptr;
  for (const Kind& kind : kinds)
    if (strcmp(kind.name, argv[1]) == 0) wanted = &kind;
  must(wanted != nullptr);
  wanted->hide();
  lose();
  scrub_stack();
  must(write(1, "ready\n", 6) == 6);
  char c;
  while (read(0, &c, 1) == 1) {
    check_all();
    char line[100];
    int n = snprintf(line, sizeof line, "done %ld\n", failures);
    must(write(1, line, n) == n);
  }
  _exit(0);
}
