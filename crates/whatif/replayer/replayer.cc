// Replays allocator calls in a separate process. LD_PRELOAD and the environment select the
// allocator. Only the replayed calls use it: this program maps its tables, and formats its output
// by hand.
//
// Arguments: slots, threads, touch (0: the first and the last page of each block, 1: every page), largest resident
// bytes. Operations come from standard input, lines go to standard output:
//
//   library PATH          where malloc comes from
//   sample TIME BYTES     resident anonymous bytes, without those of this program
//   end CALLS NS FAULTS FAILED   calls, time in them, page faults, calls that returned nothing
//   too-large             the limit on resident bytes was reached
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

namespace {

// As in src/operations.rs.
enum Kind : uint8_t { kAllocate = 1, kZeroed, kAligned, kRelease, kReallocate, kPairs, kSample, kClock, kEnd };

struct Operation {
  uint8_t kind;
  uint8_t align_log2;
  uint16_t thread;
  uint32_t slot;  // of pairs: how many
  uint64_t value;  // bytes; of samples and of the clock: the time since the begin in ns
};
static_assert(sizeof(Operation) == 16);

struct Slot {
  void* block;
  size_t size;
};

constexpr size_t page = 4096, batch_operations = 16384;
// Has the turn when a whole batch is done; above the numbers of all threads.
constexpr uint32_t most_threads = 1024;

Slot* slots;
Operation* batch;
size_t slot_count, batch_length, next_operation;
uint32_t thread_count;
bool touches_all;
uint64_t most_bytes, own_bytes;
int statm;
// The thread that may continue; it publishes everything that the others need to see.
std::atomic<uint32_t> turn;
uint64_t calls, ticks, failed, empty_ticks;

// The first thread is the process's own.
struct Worker {
  pthread_t thread;
  bool lives;
};
Worker* workers;
// Thread that ends when it gets its turn; published by the turn.
constexpr uint32_t nobody = UINT32_MAX;
uint32_t leaving = nobody;

[[noreturn]] void stop(int status) { syscall(SYS_exit_group, status), __builtin_trap(); }

uint64_t now_ticks() {
  unsigned ignored;
  return __builtin_ia32_rdtscp(&ignored);
}

constexpr uint64_t second = 1'000'000'000;
uint64_t nanoseconds(clockid_t clock) {
  timespec now = {};
  syscall(SYS_clock_gettime, clock, &now);
  return now.tv_sec * second + now.tv_nsec;
}

// Time in the recording, for allocators that give memory back after some time. Only the thread that has the turn
// advances it.
std::atomic<uint64_t> recorded_ns;

// A line that is assembled without the C library's streams, which allocate.
struct Line {
  char text[512];
  size_t length = 0;

  Line& word(const char* word) {
    while (*word && length < sizeof text - 24) text[length++] = *word++;
    return *this;
  }
  Line& number(uint64_t number) {
    char digits[20];
    size_t count = 0;
    do digits[count++] = '0' + number % 10;
    while (number /= 10);
    text[length++] = ' ';
    while (count) text[length++] = digits[--count];
    return *this;
  }
  void write() {
    text[length++] = '\n';
    for (size_t done = 0; done < length;) {
      ssize_t now = ::write(1, text + done, length - done);
      if (now < 0 && errno == EINTR) continue;
      if (now <= 0) stop(0);  // nobody reads any more
      done += now;
    }
  }
};

void* map(size_t bytes) {
  void* place = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (place == MAP_FAILED) {
    Line().word("too-large").write();
    stop(0);
  }
  return place;
}

uint64_t anonymous_bytes() {
  char text[128];
  ssize_t length = pread(statm, text, sizeof text - 1, 0);
  if (length <= 0) return 0;
  text[length] = 0;
  char* at = text;
  strtoul(at, &at, 10);  // all pages
  uint64_t resident = strtoul(at, &at, 10), of_files = strtoul(at, &at, 10);
  return (resident - of_files) * page;
}

void sample(uint64_t time) {
  uint64_t bytes = anonymous_bytes();
  bytes -= bytes < own_bytes ? bytes : own_bytes;
  Line().word("sample").number(time).number(bytes).write();
  if (bytes > most_bytes) {
    Line().word("too-large").write();
    stop(0);
  }
}

// Number of bytes that may be written between two checks of the limit. A foreign recording may have blocks of any size:
// they must not use up the memory of other programs before the next sample.
constexpr uint64_t unchecked_bytes = 64 << 20;
uint64_t unchecked;
void expect_room(uint64_t more) {
  unchecked += more;
  if (unchecked < unchecked_bytes) return;
  unchecked = 0;
  if (more > most_bytes || anonymous_bytes() + more > most_bytes + own_bytes) {
    Line().word("too-large").write();
    stop(0);
  }
}

// Writes to pages as the recorded program would: pages that nobody writes to are not resident.
void touch(void* block, size_t from, size_t size) {
  auto* bytes = static_cast<volatile char*>(block);
  if (size == 0) return;
  expect_room(touches_all ? size - from : page);
  if (touches_all)
    for (size_t at = from; at < size; at += page) bytes[at] = 1;
  else
    bytes[0] = 1;
  bytes[size - 1] = 1;
}

template <class Call>
inline void* timed(Call call) {
  uint64_t begin = now_ticks();
  void* result = call();
  uint64_t end = now_ticks();
  ticks += end - begin;
  ++calls;
  // The compiler must not omit a call whose result is unused.
  asm volatile("" : : "r"(result) : "memory");
  return result;
}

void release(void* block) {
  timed([=]() -> void* { return free(block), nullptr; });
}

void put(Slot& slot, void* block, size_t size) {
  slot = {block, size};
  if (block)
    touch(block, 0, size);
  else
    ++failed;
}

void execute(const Operation& op) {
  size_t size = op.value;
  if (op.kind == kSample) return sample(op.value);
  if (op.kind == kClock) return recorded_ns.store(op.value, std::memory_order_relaxed);
  if (op.kind == kPairs) {
    for (uint32_t i = 0; i < op.slot; ++i) {
      void* block = timed([=] { return malloc(size); });
      if (block)
        touch(block, 0, size);
      else
        ++failed;
      release(block);
    }
    return;
  }
  if (op.slot >= slot_count) stop(3);
  Slot& slot = slots[op.slot];
  switch (op.kind) {
    case kAllocate: return put(slot, timed([=] { return malloc(size); }), size);
    case kZeroed: return put(slot, timed([=] { return calloc(1, size); }), size);
    case kAligned: return put(slot, timed([=] { return memalign(size_t{1} << op.align_log2, size); }), size);
    case kRelease:
      release(slot.block);
      slot = {};
      return;
    case kReallocate: {
      // realloc(block, 0) releases in some allocators.
      void* block = timed([=, old = slot.block] { return realloc(old, size ? size : 1); });
      if (!block) {
        ++failed;
        return;
      }
      if (size > slot.size) touch(block, slot.size, size);
      slot = {block, size};
      return;
    }
    default: stop(3);
  }
}

void wait_for_turn(uint32_t me) {
  // A short wait is cheaper than a sleep if the other thread has a separate processor.
  for (int i = 0; i < 2000; ++i) {
    if (turn.load(std::memory_order_acquire) == me) return;
    __builtin_ia32_pause();
  }
  for (;;) {
    uint32_t seen = turn.load(std::memory_order_acquire);
    if (seen == me) return;
    syscall(SYS_futex, &turn, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
  }
}

void give_turn(uint32_t to) {
  turn.store(to, std::memory_order_release);
  syscall(SYS_futex, &turn, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

void* work(void* argument);

void start(uint32_t thread) {
  void* number = reinterpret_cast<void*>(uintptr_t{thread});
  if (pthread_create(&workers[thread].thread, nullptr, work, number) != 0) stop(2);
  workers[thread].lives = true;
}

// Called by the first thread. An allocator takes back a thread's memory when the thread ends, so this function waits
// for the end.
void end(uint32_t thread) {
  if (thread == 0 || !workers[thread].lives) return;
  leaving = thread;
  give_turn(thread);
  if (pthread_join(workers[thread].thread, nullptr) != 0) stop(3);
  workers[thread].lives = false;
  leaving = nobody;
  turn.store(0, std::memory_order_relaxed);
}

uint32_t executes(const Operation& op, uint32_t me) {
  if (op.kind == kSample || op.kind == kClock) return me;
  return op.kind == kEnd ? 0 : op.thread % thread_count;
}

// Executes the operations of this thread's turn. The first thread continues with the next batch when this batch is
// done.
void run(uint32_t me) {
  while (next_operation < batch_length && leaving != me) {
    const Operation& op = batch[next_operation];
    uint32_t thread = executes(op, me);
    if (thread != me) {
      if (thread != 0 && !workers[thread].lives) start(thread);
      give_turn(thread);
      wait_for_turn(me);
      continue;
    }
    ++next_operation;
    if (op.kind == kEnd)
      end(op.thread % thread_count);
    else
      execute(op);
  }
}

void* work(void* argument) {
  auto me = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(argument));
  for (;;) {
    wait_for_turn(me);
    run(me);
    if (leaving == me) return nullptr;
    give_turn(0);
  }
}

// Fills the batch; returns false at the end.
bool read_batch() {
  size_t length = 0, whole = batch_operations * sizeof(Operation);
  auto* bytes = reinterpret_cast<char*>(batch);
  while (length < whole) {
    ssize_t now = read(0, bytes + length, whole - length);
    if (now < 0 && errno == EINTR) continue;
    if (now <= 0) break;
    length += now;
  }
  batch_length = length / sizeof(Operation);
  next_operation = 0;
  return batch_length > 0;
}

}  // namespace

// The calls follow each other as fast as possible. Allocators in libraries find this function before the C library's,
// as the symbols of the program come first (ld.so(8)). So for them, the same time passes as in the recorded process.
extern "C" [[gnu::visibility("default")]] int clock_gettime(clockid_t clock, timespec* out) noexcept {
  bool is_wall_time = clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_MONOTONIC_RAW ||
                      clock == CLOCK_BOOTTIME || clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
  if (!is_wall_time) return static_cast<int>(syscall(SYS_clock_gettime, clock, out));
  // Any start will do, except the epoch, which some take for a broken clock.
  uint64_t now = 1'000'000 * second + recorded_ns.load(std::memory_order_relaxed);
  out->tv_sec = static_cast<time_t>(now / second);
  out->tv_nsec = static_cast<long>(now % second);
  return 0;
}

int main(int count, char** arguments) {
  if (count != 5) return 2;
  slot_count = strtoul(arguments[1], nullptr, 10);
  thread_count = strtoul(arguments[2], nullptr, 10);
  touches_all = arguments[3][0] == '1';
  most_bytes = strtoul(arguments[4], nullptr, 10);
  if (thread_count == 0 || thread_count > most_threads) return 2;
  statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (statm < 0) return 2;
  Dl_info info;
  void* (*allocate)(size_t) = malloc;
  bool is_known = dladdr(reinterpret_cast<void*>(allocate), &info) != 0 && info.dli_fname;
  Line().word("library ").word(is_known ? info.dli_fname : "?").write();
  slots = static_cast<Slot*>(map((slot_count + 1) * sizeof(Slot)));
  batch = static_cast<Operation*>(map(batch_operations * sizeof(Operation)));
  workers = static_cast<Worker*>(map(thread_count * sizeof(Worker)));
  // Start all of them now: memory that the C library needs for a thread is not part of the replay.
  for (uint32_t i = 1; i < thread_count; ++i) start(i);
  empty_ticks = UINT64_MAX;
  for (int i = 0; i < 1000; ++i) {
    uint64_t begin = now_ticks(), taken = now_ticks() - begin;
    if (taken < empty_ticks) empty_ticks = taken;
  }
  own_bytes = anonymous_bytes();
  rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  uint64_t began_ns = nanoseconds(CLOCK_MONOTONIC), began_ticks = now_ticks();
  while (read_batch()) run(0);
  uint64_t all_ns = nanoseconds(CLOCK_MONOTONIC) - began_ns, all_ticks = now_ticks() - began_ticks;
  getrusage(RUSAGE_SELF, &after);
  uint64_t around = calls * empty_ticks, inside = ticks > around ? ticks - around : 0;
  double ns = all_ticks ? double(inside) * double(all_ns) / double(all_ticks) : 0;
  Line()
      .word("end")
      .number(calls)
      .number(uint64_t(ns))
      .number(after.ru_minflt - before.ru_minflt)
      .number(failed)
      .write();
  // Blocks that were never released are not released now either.
  stop(0);
}
