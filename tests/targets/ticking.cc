// A timer interrupts the main thread constantly, and its handler allocates. This is allowed here,
// because the main thread itself never allocates. Other threads allocate at the same time.
// Argument: number of ticks, or "endless", which lasts until the input ends.
#include <sys/time.h>

#include <atomic>
#include <csignal>
#include <thread>
#include <vector>

#include "target.hpp"

using namespace target;

static std::atomic<bool> stop{false};
static volatile sig_atomic_t ticks;
static unsigned char* volatile last;

[[gnu::noinline]] static void leak_in_handler() { keep(malloc(87)); }

static void tick(int) {
  int error = errno;
  if (last) CHECK(last[0] == 0x5a && last[199] == 0xa5);
  free(last);
  last = static_cast<unsigned char*>(malloc(200));
  last[0] = 0x5a;
  last[199] = 0xa5;
  if (ticks % 10 == 0) leak_in_handler();
  ticks = ticks + 1;
  errno = error;
}

static void work() {
  while (!stop)
    for (int i = 1; i < 200; i++) {
      auto* block = static_cast<unsigned char*>(malloc(static_cast<size_t>(i)));
      block[i - 1] = static_cast<unsigned char>(i);
      CHECK(block[i - 1] == i);
      free(block);
    }
}

int main(int, char** arguments) {
  bool endless = strcmp(arguments[1], "endless") == 0;
  int wanted = endless ? 1 << 30 : atoi(arguments[1]);
  sigset_t alarm;
  sigemptyset(&alarm);
  sigaddset(&alarm, SIGALRM);
  pthread_sigmask(SIG_BLOCK, &alarm, nullptr);  // the threads inherit it
  say("ready");
  if (!endless) wait_for_byte();
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; i++) threads.emplace_back(work);
  if (endless)
    threads.emplace_back([] {
      wait_for_byte();
      stop = true;
    });
  struct sigaction action {};
  action.sa_handler = tick;
  action.sa_flags = SA_RESTART;
  sigaction(SIGALRM, &action, nullptr);
  pthread_sigmask(SIG_UNBLOCK, &alarm, nullptr);
  itimerval often{{0, 500}, {0, 500}};
  CHECK(setitimer(ITIMER_REAL, &often, nullptr) == 0);
  unsigned long sum = 0, rounds = 0;
  while (ticks < wanted && !stop) {
    for (unsigned i = 0; i < 1000; i++) {
      asm volatile("" : "+r"(sum));
      sum += i;
    }
    rounds++;
  }
  often = {};
  CHECK(setitimer(ITIMER_REAL, &often, nullptr) == 0);
  CHECK(sum == rounds * 499500);
  pthread_sigmask(SIG_BLOCK, &alarm, nullptr);
  stop = true;
  for (auto& thread : threads) thread.join();
  free(last);
  char line[32];
  snprintf(line, sizeof line, "kept %d", (static_cast<int>(ticks) + 9) / 10);
  say(line);
  if (!endless) done();
}
