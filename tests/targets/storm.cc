// Programs for a storm of attaches, selected by argument 1. Each works until the end of its input,
// checks itself, and can be asked whether it is usable (usable.hpp).
//   prefork    workers that are forked, work for a moment, and are replaced
//   plugins    opens and closes the libraries that the other arguments name
//   sandboxed  allocates under a filter that kills for the system calls of a tracer
//   handler    asks for more memory than there is: new-handlers that throw, free, or end the thread
//   cancelled  threads that are cancelled between and during allocations
//   waits      threads that wait with a time limit; at the end says how often a wait ended with
//              EINTR or too early, and how late
#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include <atomic>
#include <new>
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

// Returns true if the worker has exited properly.
static bool await_worker(pid_t worker, int options) {
  int status = 0;
  pid_t ended = waitpid(worker, &status, options);
  CHECK(ended == worker || (ended == 0 && options == WNOHANG));
  if (ended == 0) return false;
  if (WIFSIGNALED(status)) fprintf(stderr, "a worker ended by signal %d\n", WTERMSIG(status));
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return true;
}

static void prefork() {
  pid_t workers[3] = {};
  while (!stop) {
    for (int i = 0; i < 3; i++) {
      if (workers[i]) continue;
      workers[i] = fork();
      CHECK(workers[i] >= 0);
      if (workers[i] == 0) {
        for (int round = 0; round < 40 + 40 * i; round++) {
          CHECK(hammer(1000) == 500);
          usleep(5000);
        }
        _exit(0);
      }
    }
    CHECK(hammer(1000) == 500);
    // Waits for each worker by its id, because use_everything() has other children.
    for (pid_t& worker : workers)
      if (await_worker(worker, WNOHANG)) worker = 0;
    usleep(1000);
  }
  for (pid_t worker : workers)
    if (worker) await_worker(worker, 0);
}

static void plugins(int count, char** names) {
  long opened = 0;
  while (!stop) {
    for (int i = 0; i < count; i++) {
      void* library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
      CHECK(library);
      CHECK(hammer(100) == 50);
      CHECK(dlclose(library) == 0);
      opened++;
    }
  }
  CHECK(opened > 0);
}

static void sandboxed() {
  unsigned foreign[] = {SYS_mprotect, SYS_memfd_create, SYS_membarrier, SYS_process_vm_readv,
                        SYS_nanosleep, SYS_gettid, SYS_getpid, SYS_clock_gettime};
  std::vector<sock_filter> program = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
  };
  for (unsigned number : foreign) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  sock_fprog filter = {static_cast<unsigned short>(program.size()), program.data()};
  CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) == 0);
  while (!stop) CHECK(hammer(1000) == 500);
}

static std::atomic<long> handled{0};
static thread_local char* reserve = nullptr;
static void give_up() {
  handled++;
  if (reserve) {  // once more, with the memory that this returns
    free(reserve);
    reserve = nullptr;
    return;
  }
  throw std::bad_alloc();
}
static void end_thread() { pthread_exit(nullptr); }

// Returns a size that no allocator can provide, hidden from the compiler.
static size_t too_much() {
  volatile size_t bytes = PTRDIFF_MAX / 2;
  return bytes;
}

static void* ask_for_too_much(void*) {
  keep(operator new(too_much()));
  return nullptr;
}

static void handlers() {
  while (!stop) {
    std::set_new_handler(give_up);
    for (int i = 0; i < 50; i++) {
      reserve = static_cast<char*>(malloc(1000));
      bool thrown = false;
      try {
        keep(operator new(too_much()));
      } catch (const std::bad_alloc&) {
        thrown = true;
      }
      CHECK(thrown && !reserve);
      CHECK(operator new(too_much(), std::nothrow) == nullptr);
      CHECK(hammer(20) == 10);
    }
    std::set_new_handler(end_thread);
    pthread_t thread;
    CHECK(pthread_create(&thread, nullptr, ask_for_too_much, nullptr) == 0);
    CHECK(pthread_join(thread, nullptr) == 0);
  }
  CHECK(handled > 0);
}

static void* endless(void*) {
  for (;;) {
    void* block = malloc(100);
    pthread_cleanup_push(free, block);
    pthread_testcancel();
    pthread_cleanup_pop(1);
  }
}

static void cancelled() {
  while (!stop) {
    pthread_t threads[4];
    for (pthread_t& thread : threads) CHECK(pthread_create(&thread, nullptr, endless, nullptr) == 0);
    usleep(500);
    for (pthread_t thread : threads) CHECK(pthread_cancel(thread) == 0);
    for (pthread_t thread : threads) {
      void* result = nullptr;
      CHECK(pthread_join(thread, &result) == 0);
      CHECK(result == PTHREAD_CANCELED);
    }
  }
}

// Names by kind of wait.
static const char* const wait_names[] = {"epoll_wait", "sigtimedwait", "semtimedop", "futex", "nanosleep", "poll"};
constexpr int wait_kinds = 6;
static std::atomic<long> interrupted[wait_kinds], early[wait_kinds], latest_ms[wait_kinds], rounds[wait_kinds];

static double now_ms() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) / 1e6;
}

static void wait_again_and_again(int kind) {
  constexpr long limit_ms = 70;
  int epoll = epoll_create1(0);
  int semaphores = semget(IPC_PRIVATE, 1, 0600);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  int word = 5;
  while (!stop) {
    timespec limit{0, limit_ms * 1'000'000};
    double begin = now_ms();
    errno = 0;
    switch (kind) {
      case 0: {
        epoll_event event;
        epoll_wait(epoll, &event, 1, limit_ms);
        break;
      }
      case 1: sigtimedwait(&signals, nullptr, &limit); break;
      case 2: {
        sembuf take{0, -1, 0};
        semtimedop(semaphores, &take, 1, &limit);
        break;
      }
      case 3: syscall(SYS_futex, &word, FUTEX_WAIT, 5, &limit, nullptr, 0); break;
      case 4: nanosleep(&limit, nullptr); break;
      case 5: {
        pollfd none{-1, POLLIN, 0};
        poll(&none, 1, limit_ms);
        break;
      }
    }
    bool is_interrupted = errno == EINTR;
    double took = now_ms() - begin;
    rounds[kind]++;
    if (is_interrupted) {
      interrupted[kind]++;
    } else if (took < limit_ms) {
      early[kind]++;
    } else if (took - limit_ms > static_cast<double>(latest_ms[kind])) {
      latest_ms[kind] = static_cast<long>(took - limit_ms);
    }
    keep(malloc(1));
  }
  semctl(semaphores, 0, IPC_RMID);
}

static void waits() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  std::vector<std::thread> threads;
  for (int kind = 1; kind < wait_kinds; kind++) threads.emplace_back(wait_again_and_again, kind);
  wait_again_and_again(0);
  for (auto& thread : threads) thread.join();
}

int main(int count, char** arguments) {
  std::string what = arguments[1];
  // A new arena needs mprotect, which the filter forbids.
  if (what == "sandboxed") mallopt(M_ARENA_MAX, 1);
  std::thread reader([&] {
    serve();
    stop = true;
  });
  say("ready");
  if (what == "prefork") prefork();
  if (what == "plugins") plugins(count - 2, arguments + 2);
  if (what == "sandboxed") sandboxed();
  if (what == "handler") handlers();
  if (what == "cancelled") cancelled();
  if (what == "waits") waits();
  reader.join();
  for (int kind = 0; what == "waits" && kind < wait_kinds; kind++) {
    char line[120];
    snprintf(line, sizeof line, "%s %ld %ld %ld %ld", wait_names[kind], rounds[kind].load(),
             interrupted[kind].load(), early[kind].load(), latest_ms[kind].load());
    say(line);
  }
  return 0;
}
