// A mutex at a fixed address, shared by a program, its allocator and its auditor. They cannot share
// a symbol, because an auditor has a separate namespace and C library (rtld-audit(7)).
#pragma once
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace target {

inline void* const lent_address = reinterpret_cast<void*>(0x2000'0000'0000);
constexpr size_t lent_bytes = 4096;

// Returns the mutex, or null if the program has not created it.
inline pthread_mutex_t* lent_lock() {
  unsigned char resident;
  long error = syscall(SYS_mincore, lent_address, lent_bytes, &resident);
  return error == 0 ? static_cast<pthread_mutex_t*>(lent_address) : nullptr;
}

inline pthread_mutex_t* make_lent_lock() {
  void* at = mmap(lent_address, lent_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (at != lent_address) _exit(8);
  auto* lock = static_cast<pthread_mutex_t*>(at);
  pthread_mutex_init(lock, nullptr);
  return lock;
}

// Simulates an allocator hook that maintains a list.
inline void take_lent_lock() {
  if (pthread_mutex_t* lock = lent_lock()) {
    pthread_mutex_lock(lock);
    pthread_mutex_unlock(lock);
  }
}

}  // namespace target
