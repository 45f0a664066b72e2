// A heap with known leaks, and threads in calls that a stop interrupts (epoll_wait, a read from a
// socket with a timeout, sigtimedwait, semtimedop), a thread that sleeps, a thread that waits for a
// lock, and a thread that computes. At the end the program checks for effects of a reader:
// interrupted calls, mappings, signals, memory, the state of its threads.
#include <atomic>
#include <csignal>
#include <fcntl.h>
#include <mutex>
#include <string>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <thread>
#include <vector>

#include "target.hpp"

using namespace target;

static std::atomic<bool> end{false};
static std::atomic<long> interrupted{0}, rounds{0};

// Each call lasts for 50 ms at most, so that every thread sees the end.
template <typename Call>
static void repeat(Call call) {
  while (!end) {
    errno = 0;
    if (call() < 0 && errno == EINTR) interrupted++;
  }
}

static void in_epoll() {
  int epoll = epoll_create1(EPOLL_CLOEXEC);
  repeat([&] {
    epoll_event event;
    return epoll_wait(epoll, &event, 1, 50);
  });
}

static void in_socket() {
  int both[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, both) == 0);
  timeval time{0, 50000};
  CHECK(setsockopt(both[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
  repeat([&] {
    char byte;
    return read(both[0], &byte, 1);
  });
}

static void in_signal_wait() {
  repeat([] {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    timespec time{0, 50000000};
    return sigtimedwait(&set, nullptr, &time);
  });
}

static void in_semaphore() {
  int id = semget(IPC_PRIVATE, 1, 0600);
  CHECK(id >= 0);
  repeat([&] {
    sembuf down{0, -1, 0};
    timespec time{0, 50000000};
    return semtimedop(id, &down, 1, &time);
  });
  semctl(id, 0, IPC_RMID);
}

static std::mutex lock;

static void for_lock() { std::lock_guard<std::mutex> guard(lock); }

static void sleeping() {
  while (!end) usleep(50000);
}

static std::vector<uint64_t> numbers(1 << 16);

static void computing() {
  while (!end)
    for (auto& number : numbers) number++, rounds++;
}

static std::string maps() {
  std::string text;
  int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  char part[4096];
  for (ssize_t got; (got = read(file, part, sizeof part)) > 0;) text.append(part, static_cast<size_t>(got));
  close(file);
  return text;
}

static int descriptors() {
  int count = 0;
  for (int fd = 0; fd < 1024; fd++) count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

// Leaks 100 blocks.
[[gnu::noinline]] static void leak() {
  for (int i = 0; i < 100; i++) {
    auto* block = static_cast<char*>(malloc(777));
    memset(block, 7, 777);
    keep(block);
  }
}

int main(int count, char** words) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  lock.lock();
  std::vector<std::thread> threads;
  for (auto work : {in_epoll, in_socket, in_signal_wait, in_semaphore, for_lock, sleeping}) threads.emplace_back(work);
  std::string mode = count > 1 ? words[1] : "";
  // A thread that never sleeps may be stopped at any instruction.
  if (mode == "computes") threads.emplace_back(computing);
  // A heap that is too large to copy within a millisecond.
  std::vector<std::string> large(mode == "large" ? 256 : 0, std::string(1 << 20, 'x'));
  leak();
  // Leaks enough blocks for a finding.
  for (int i = 0; mode == "leaks" && i < 2048; i++) {
    auto* block = static_cast<char*>(malloc(4096));
    memset(block, 7, 4096);
    keep(block);
  }
  // Idle blocks, next to blocks to which one thread writes constantly.
  std::vector<std::string> idle(mode == "writes" ? 64 : 0, std::string(20000, 'i'));
  std::vector<std::string> busy(mode == "writes" ? 64 : 0, std::string(40000, 'b'));
  if (mode == "writes")
    threads.emplace_back([&] {
      while (!end) {
        for (auto& block : busy) ++*reinterpret_cast<uint64_t*>(block.data());
        usleep(1000);
      }
    });
  usleep(200000);
  std::string before = maps();
  // Reading the list of mappings grows the heap, so only the second and later lists are compared.
  before = maps();
  int open_before = descriptors();
  say("ready");
  wait_for_byte();
  std::string after = maps();
  CHECK(descriptors() == open_before);
  end = true;
  lock.unlock();
  for (auto& thread : threads) thread.join();
  if (after != before) {
    fprintf(stderr, "before:\n%s\nafter:\n%s\n", before.c_str(), after.c_str());
    return 6;
  }
  CHECK(interrupted == 0);
  for (auto& number : numbers) CHECK(number == numbers[0]);
  done();
}
