// Lives under a seccomp filter. argv[1]:
//   refuse   mprotect fails
//   kill     kills for every system call that a tracer might make and the program does not need
//   strict   as `kill`, and kills for every call of a loader
//   late     as `strict`, from the first byte of input on
//   opens    opens the library argv[2] under a filter that allows the calls of the loader
//   under    the filter allows everything; executes argv[2..]
#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <atomic>
#include <string_view>
#include <thread>
#include <vector>

#include "target.hpp"

using namespace target;

// Applies `action` to the system calls in `numbers`, and allows all others.
static void install(const std::vector<unsigned>& numbers, unsigned action) {
  std::vector<sock_filter> program = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
  };
  for (unsigned number : numbers) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, action));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  sock_fprog filter = {static_cast<unsigned short>(program.size()), program.data()};
  CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  // Applies to all threads.
  CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) == 0);
}

// Excludes system calls that the loader also needs.
static void kill_at_calls_that_no_loader_makes() {
  install({SYS_memfd_create, SYS_membarrier, SYS_process_vm_readv, SYS_nanosleep, SYS_gettid,
           SYS_getpid, SYS_clock_gettime, SYS_futex},
          SECCOMP_RET_KILL_PROCESS);
}

static void kill_at_foreign_calls() {
  install({SYS_mprotect, SYS_memfd_create, SYS_membarrier, SYS_process_vm_readv,
           SYS_nanosleep, SYS_gettid, SYS_getpid, SYS_clock_gettime},
          SECCOMP_RET_KILL_PROCESS);
}

// Also kills at the loader's system calls, which the program does not need: it opens no files, and
// the buffer of standard output exists.
static void kill_at_calls_of_loaders() {
  static char buffer[1 << 12];
  CHECK(setvbuf(stdout, buffer, _IOFBF, sizeof buffer) == 0);
  install({SYS_openat, SYS_open, SYS_pread64, SYS_fstat, SYS_newfstatat, SYS_statx, SYS_mprotect,
           SYS_memfd_create, SYS_membarrier, SYS_process_vm_readv, SYS_readlink},
          SECCOMP_RET_KILL_PROCESS);
}

static std::atomic<bool> there{false}, go{false};

static void churn() {
  there = true;
  while (!go) std::this_thread::yield();
  // Generates more events than a small ring can hold.
  for (int i = 0; i < 200'000; i++) {
    char* block = static_cast<char*>(malloc(100));
    block[0] = 1;
    keep(block);
    free(block);
  }
  for (int i = 0; i < 4; i++) keep(malloc(200));
}

// The attributes keep this function contiguous, so that an allocator description can name it.
[[gnu::noipa, gnu::optimize("no-reorder-blocks-and-partition")]] static void* pool_alloc(size_t bytes) {
  void* block = malloc(bytes);
  if (!block) throw std::bad_alloc();
  return block;
}

int main(int argc, char** argv) {
  std::string_view mode = argc > 1 ? argv[1] : "refuse";
  if (mode == "under") {
    install({}, SECCOMP_RET_ALLOW);
    execvp(argv[2], argv + 2);
    return 1;
  }
  if (mode == "opens") {
    kill_at_calls_that_no_loader_makes();
    ready();
    for (int i = 0; i < 6; i++) {
      void* library = dlopen(argv[2], RTLD_NOW);
      CHECK(library != nullptr);
      auto leak = reinterpret_cast<void* (*)(size_t)>(dlsym(library, "leak_in_library"));
      CHECK(leak != nullptr);
      keep(leak(500));
      CHECK(dlclose(library) == 0);
    }
    done();
    return 0;
  }
  // Further arenas of malloc would grow by mprotect.
  mallopt(M_ARENA_MAX, 1);
  std::thread other(churn);
  while (!there) std::this_thread::yield();
  if (mode == "refuse") {
    install({SYS_mprotect}, SECCOMP_RET_ERRNO | EPERM);
    CHECK(mprotect(reinterpret_cast<void*>(4096), 4096, PROT_READ) == -1 && errno == EPERM);
  }
  if (mode == "kill") kill_at_foreign_calls();
  if (mode == "strict") kill_at_calls_of_loaders();
  say("ready");
  wait_for_byte();
  if (mode == "late") {
    kill_at_foreign_calls();
    say("filtered");
    wait_for_byte();
  }
  for (int i = 0; i < 9; i++) keep(malloc(300));
  for (int i = 0; i < 5; i++) keep(new char[70]);
  for (int i = 0; i < 3; i++) keep(pool_alloc(40));
  go = true;
  other.join();
  done();
}
