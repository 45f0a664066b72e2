// Blocks in the system call that argument 1 names, and prints the outcome: "result errno
// milliseconds".
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <time.h>

#include <string>

#include "target.hpp"

using namespace target;

static long now_ms() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int main(int, char** arguments) {
  std::string call = arguments[1];
  constexpr long timeout_ms = 1500;
  timespec timeout{1, 500'000'000};
  int ends[2];
  CHECK(pipe(ends) == 0);
  int epoll = epoll_create1(0);
  int semaphores = semget(IPC_PRIVATE, 1, 0600);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  say("ready");
  long start = now_ms(), result = -2;
  errno = 0;
  if (call == "poll") {
    pollfd fd{ends[0], POLLIN, 0};
    result = poll(&fd, 1, timeout_ms);
  } else if (call == "select") {
    timeval t{1, 500'000};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    result = select(ends[0] + 1, &set, nullptr, nullptr, &t);
  } else if (call == "futex") {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    until.tv_nsec += 500'000'000;
    if (until.tv_nsec >= 1'000'000'000) {
      until.tv_sec++;
      until.tv_nsec -= 1'000'000'000;
    }
    pthread_mutex_lock(&mutex);
    result = pthread_cond_timedwait(&condition, &mutex, &until);
  } else if (call == "nanosleep") {
    result = nanosleep(&timeout, nullptr);
  } else if (call == "clock_nanosleep") {
    result = clock_nanosleep(CLOCK_MONOTONIC, 0, &timeout, nullptr);
  } else if (call == "epoll_wait") {
    epoll_event event;
    result = epoll_wait(epoll, &event, 1, timeout_ms);
  } else if (call == "sigtimedwait") {
    result = sigtimedwait(&signals, nullptr, &timeout);
  } else if (call == "semtimedop") {
    sembuf take{0, -1, 0};
    result = semtimedop(semaphores, &take, 1, &timeout);
  } else if (call == "read") {
    char byte;
    result = read(0, &byte, 1);
  }
  int error = errno;
  semctl(semaphores, 0, IPC_RMID);
  char line[96];
  snprintf(line, sizeof line, "%ld %d %ld", result, error, now_ms() - start);
  say(line);
  wait_for_byte();
}
