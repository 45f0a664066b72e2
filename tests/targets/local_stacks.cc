// A coroutine ("coroutine") or a signal handler ("handler") whose stack is a local array of main;
// main has other data below this array. Most of the time it sleeps in calls with timeouts.
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <ucontext.h>

#include "target.hpp"

using namespace target;

struct Locals {
  unsigned char data[64 * 1024];
  alignas(16) char stack[20 * 1024];
};

static int waiting;

static void wait_with_timeouts() {
  // Waits for input or for its end.
  pollfd input = {0, POLLIN, 0};
  timespec timeout = {0, 3000000};
  epoll_event event;
  while (poll(&input, 1, 0) == 0) {
    epoll_wait(waiting, &event, 1, 3);
    ppoll(nullptr, 0, &timeout, nullptr);
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR2);
    sigtimedwait(&signals, nullptr, &timeout);
  }
}

static void on_signal(int) { wait_with_timeouts(); }

int main(int, char** arguments) {
  Locals locals;
  ucontext_t here, there;
  waiting = epoll_create1(0);
  CHECK(waiting >= 0);
  for (size_t i = 0; i < sizeof locals.data; i++) locals.data[i] = static_cast<unsigned char>(i * 31 >> 3 | 1);
  keep(&locals);
  if (!strcmp(arguments[1], "handler")) {
    stack_t stack = {};
    stack.ss_sp = locals.stack;
    stack.ss_size = sizeof locals.stack;
    CHECK(!sigaltstack(&stack, nullptr));
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_ONSTACK;
    CHECK(!sigaction(SIGUSR1, &action, nullptr));
  }
  say("ready");
  for (;;) {
    if (!strcmp(arguments[1], "handler")) {
      raise(SIGUSR1);
    } else {
      CHECK(!getcontext(&there));
      there.uc_stack.ss_sp = locals.stack;
      there.uc_stack.ss_size = sizeof locals.stack;
      there.uc_link = &here;
      makecontext(&there, wait_with_timeouts, 0);
      CHECK(!swapcontext(&here, &there));
    }
    char byte;
    ssize_t got = read(0, &byte, 1);
    if (got < 0 && errno == EINTR) continue;
    for (size_t i = 0; i < sizeof locals.data; i++) CHECK(locals.data[i] == (static_cast<unsigned char>(i * 31 >> 3) | 1));
    if (got <= 0) return 0;
    say("intact");
  }
}
