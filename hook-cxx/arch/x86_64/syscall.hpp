// Raw Linux x86-64 system calls, which use neither errno nor libc.
#pragma once
#include <stdint.h>

namespace memhook::sys {

inline constexpr long nr_mmap = 9, nr_mprotect = 10, nr_sched_yield = 24, nr_madvise = 28, nr_nanosleep = 35,
                      nr_gettid = 186, nr_futex = 202, nr_process_vm_readv = 310, nr_getpid = 39,
                      nr_clock_gettime = 228, nr_brk = 12, nr_shmctl = 31, nr_munmap = 11, nr_mremap = 25,
                      nr_munlock = 150;

// The kernel clobbers rcx and r11 only (x86-64 psABI, appendix A.2.1).
inline long call(long nr, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
  long result;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
}

struct timespec64 {
  int64_t seconds, nanoseconds;
};

inline void sleep_ns(int64_t ns) {
  timespec64 t{0, ns};
  call(nr_nanosleep, reinterpret_cast<long>(&t));
}

inline int64_t monotonic_ns() {
  timespec64 t{0, 0};
  call(nr_clock_gettime, 1, reinterpret_cast<long>(&t));
  return t.seconds * 1'000'000'000 + t.nanoseconds;
}

struct iovec {
  void* base;
  uint64_t length;
};

// Reads our own memory without ever faulting: EFAULT instead of SIGSEGV (process_vm_readv(2)).
inline bool read_own(uint64_t address, void* into, uint64_t bytes) {
  iovec local{into, bytes}, remote{reinterpret_cast<void*>(address), bytes};
  // Uses this thread's id, because the initial thread may have ended, and the memory can then no longer be read through
  // it.
  long tid = call(nr_gettid);
  return call(nr_process_vm_readv, tid, reinterpret_cast<long>(&local), 1, reinterpret_cast<long>(&remote), 1, 0) ==
         static_cast<long>(bytes);
}

}  // namespace memhook::sys
