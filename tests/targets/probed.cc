// Functions to probe. Each is called a known number of times, and calls begin and end in every
// possible way. Arguments: threads, rounds. One letter of input starts a round: g, the planted
// calls; f, the planted calls in a forked process, which then stays; s, calls that sleep; a, calls
// with planted arguments and callers; c, coroutines; x, an execve of this program; q, exit without
// output.
#include <coroutine>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <pthread.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "target.hpp"

using namespace target;

extern "C" {
volatile long shared_value = 1;

// The jump displaces an instruction with an address relative to rip.
[[gnu::noinline, gnu::noclone]] long relative(long x) { return shared_value + x; }

// Displaced: a call.
[[gnu::noinline, gnu::noclone]] long begins_with_call(long x) { return relative(x) + 1; }

// The jump displaces a comparison and a short jump.
[[gnu::noinline, gnu::noclone]] long branches(long x) {
  if (x < 5) return shared_value;
  return x * 3 + shared_value;
}

[[gnu::noinline, gnu::noclone, gnu::patchable_function_entry(5, 0)]] long padded(long x) {
  return x + shared_value;
}

[[gnu::noinline, gnu::noclone]] void throws(int x) {
  asm volatile("");
  if (shared_value) throw x;
}

[[gnu::noinline, gnu::noclone]] void jumps(jmp_buf* to) {
  shared_value = shared_value;
  longjmp(*to, 1);
}

[[gnu::noinline, gnu::noclone]] long recurses(long n) {
  if (n == 0) return 0;
  long below = recurses(n - 1);
  asm volatile("" : "+r"(below));  // Keeps the compiler from turning this into a loop.
  return shared_value + below;
}

// Takes at least the given number of microseconds, and returns it; has two exits.
[[gnu::noinline, gnu::noclone]] long sleeps(long microseconds) {
  if (microseconds == 0) return shared_value;
  usleep(static_cast<useconds_t>(microseconds));
  return microseconds;
}

// Ends in another function (a tail call).
[[gnu::noinline, gnu::noclone]] long hands_on(long microseconds) {
  shared_value = shared_value;
  return sleeps(microseconds);
}

[[gnu::noinline, gnu::noclone]] long takes(long a, long b) {
  shared_value = shared_value;
  return a + b;
}

// Refused, because the function has no code.
[[gnu::always_inline]] static inline long melts(long x) { return x ^ shared_value; }

[[gnu::noinline, gnu::noclone]] long from_left(long i) {
  long result = takes(i % 4, -1) + melts(i) - melts(i);
  asm volatile("" : "+r"(result));
  return result;
}

[[gnu::noinline, gnu::noclone]] long from_right(long i) {
  long result = takes(4096 + i, i);
  asm volatile("" : "+r"(result));
  return result;
}

// Leaves its stack in the middle of a call, and returns to it later.
static ucontext_t scheduler, contexts[2];
[[gnu::noinline, gnu::noclone]] long yields(long which) {
  shared_value = shared_value;
  CHECK(swapcontext(&contexts[which], &scheduler) == 0);
  asm volatile("" : "+r"(which));
  return which;
}

static volatile long handled;
[[gnu::noinline, gnu::noclone]] void in_handler() { handled = handled + 1; }

// Refused.
long too_short(void);
long entered_in_the_middle(long);
long loops_to_entry(long);
}
asm(R"(
  .text
  .type too_short, @function
too_short:
  .cfi_startproc
  xor %eax, %eax
  ret
  .cfi_endproc
  .size too_short, .-too_short
  .type entered_in_the_middle, @function
entered_in_the_middle:
  .cfi_startproc
  xor %eax, %eax
1: inc %eax
  inc %eax
  dec %edi
  jnz 1b
  ret
  .cfi_endproc
  .size entered_in_the_middle, .-entered_in_the_middle
  .type loops_to_entry, @function
loops_to_entry:
  .cfi_startproc
  mov $7, %eax
  dec %edi
  jnz loops_to_entry
  ret
  .cfi_endproc
  .size loops_to_entry, .-loops_to_entry
)");

// Checks guarantees beyond the ABI: a pad must preserve the flags and every register.
extern "C" long keeps_all(void);
extern "C" long calls_keeps_all(void);
asm(R"(
  .text
  .type keeps_all, @function
keeps_all:
  .cfi_startproc
  lea 1(%r10), %r10
  lea 0(%r11), %r11
  ret
  .cfi_endproc
  .size keeps_all, .-keeps_all
  .type calls_keeps_all, @function
calls_keeps_all:
  .cfi_startproc
  mov $0x2222, %ecx
  mov $0x3333, %edx
  mov $0x4444, %esi
  mov $0x5555, %edi
  mov $0x6666, %r8d
  mov $0x7777, %r9d
  mov $0x8887, %r10d
  mov $0x9999, %r11d
  mov $0x7f, %al
  add $1, %al          # OF, SF and AF are set now, CF and ZF are not.
  stc
  mov $0x1111, %eax
  call keeps_all
  jno 9f
  jns 9f
  jnc 9f
  jz 9f
  cmp $0x1111, %eax
  jne 9f
  cmp $0x2222, %ecx
  jne 9f
  cmp $0x3333, %edx
  jne 9f
  cmp $0x4444, %esi
  jne 9f
  cmp $0x5555, %edi
  jne 9f
  cmp $0x6666, %r8d
  jne 9f
  cmp $0x7777, %r9d
  jne 9f
  cmp $0x8888, %r10d
  jne 9f
  cmp $0x9999, %r11d
  jne 9f
  mov $1, %eax
  ret
9: xor %eax, %eax
  ret
  .cfi_endproc
  .size calls_keeps_all, .-calls_keeps_all
)");

static int rounds;

static void* ask(void*) {
  for (long i = 0; i < rounds; i++) {
    CHECK(from_left(i) == i % 4 - 1);
    CHECK(from_right(i) == 4096 + 2 * i);
    CHECK(from_right(i) == 4096 + 2 * i);
  }
  return nullptr;
}

struct Numbers {
  struct promise_type {
    long value;
    Numbers get_return_object() {
      return {std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    std::suspend_always yield_value(long next) {
      value = next;
      return {};
    }
    void return_void() {}
    void unhandled_exception() { std::abort(); }
  };
  std::coroutine_handle<promise_type> handle;
};

// The body of a coroutine is a separate function, which every resume() calls, and which returns at
// every co_yield.
[[gnu::noinline]] static Numbers count_up(long from) {
  for (;; from++) co_yield relative(from);
}

static void body(int which) {
  for (int i = 0; i < rounds; i++) CHECK(yields(which) == which);
}

// Alternates between two C++ coroutines and two ucontext coroutines.
static void take_turns() {
  Numbers first = count_up(10), second = count_up(1000);
  static char stacks[2][64 << 10];
  for (int which = 0; which < 2; which++) {
    CHECK(getcontext(&contexts[which]) == 0);
    contexts[which].uc_stack.ss_sp = stacks[which];
    contexts[which].uc_stack.ss_size = sizeof stacks[which];
    contexts[which].uc_link = &scheduler;
    makecontext(&contexts[which], reinterpret_cast<void (*)()>(body), 1, which);
  }
  for (int i = 0; i < rounds; i++) {
    first.handle.resume();
    second.handle.resume();
    CHECK(first.handle.promise().value == 10 + i + shared_value);
    CHECK(second.handle.promise().value == 1000 + i + shared_value);
    for (auto& context : contexts) CHECK(swapcontext(&scheduler, &context) == 0);
  }
  for (auto& context : contexts) CHECK(swapcontext(&scheduler, &context) == 0);
  first.handle.destroy();
  second.handle.destroy();
}

static void* work(void*) {
  for (int i = 0; i < rounds; i++) {
    CHECK(relative(i) == 1 + i);
    CHECK(begins_with_call(i) == 2 + i);
    CHECK(branches(i % 10) == (i % 10 < 5 ? 1 : i % 10 * 3 + 1));
    CHECK(padded(i) == 1 + i);
    CHECK(recurses(9) == 9);
    CHECK(calls_keeps_all() == 1);
    CHECK(too_short() == 0);
    CHECK(entered_in_the_middle(3) == 6);
    CHECK(loops_to_entry(2) == 7);
    try {
      throws(i);
      CHECK(false);
    } catch (int caught) {
      CHECK(caught == i);
    }
    jmp_buf here;
    if (setjmp(here) == 0) jumps(&here);
  }
  return nullptr;
}

static void turn(int count, void* (*what)(void*) = work) {
  pthread_t threads[64];
  for (int i = 0; i < count; i++) CHECK(pthread_create(&threads[i], nullptr, what, nullptr) == 0);
  for (int i = 0; i < count; i++) pthread_join(threads[i], nullptr);
}

int main(int argc, char** argv) {
  CHECK(argc > 2);
  int threads = atoi(argv[1]);
  rounds = atoi(argv[2]);
  // With a third argument, signals arrive constantly.
  if (argc > 3) {
    struct sigaction action = {};
    action.sa_handler = [](int) { in_handler(); };
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, nullptr);
    itimerval often = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &often, nullptr);
  }
  say("ready");
  for (;;) {
    char letter = 0;
    ssize_t got = read(0, &letter, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return 0;
    switch (letter) {
      case 'g':
        turn(threads);
        say("done");
        break;
      case 'b':
        // Works until the next letter arrives, which ends the round.
        for (bool more = true; more;) {
          turn(threads);
          timeval now = {};
          fd_set set;
          FD_ZERO(&set);
          FD_SET(0, &set);
          more = select(1, &set, nullptr, nullptr, &now) != 1;
        }
        say("done");
        break;
      case 'f': {
        pid_t child = fork();
        if (child == 0) {
          turn(threads);
          char line[64];
          snprintf(line, sizeof line, "child %d", getpid());
          say(line);
          wait_for_byte();
          turn(threads);
          say("child done");
          _exit(0);
        }
        int status = 0;
        while (waitpid(child, &status, 0) < 0) CHECK(errno == EINTR);
        CHECK(status == 0);
        say("done");
        break;
      }
      case 'x':
        execv("/proc/self/exe", argv);
        CHECK(false);
      case 's':
        // The first call of a thread is not measured.
        CHECK(sleeps(0) == 1 && hands_on(0) == 1);
        for (int i = 0; i < 99; i++) CHECK(sleeps(1000) == 1000);
        CHECK(sleeps(50000) == 50000);
        for (int i = 0; i < 20; i++) CHECK(hands_on(2000) == 2000);
        say("done");
        break;
      case 'a':
        turn(threads, ask);
        say("done");
        break;
      case 'c':
        take_turns();
        say("done");
        break;
      case 'q':
        turn(threads);
        _exit(0);
    }
  }
}
