// Waiting for the attacher.
#pragma once
#include "arch.hpp"
#include "state.hpp"

namespace memhook {

// Time limit that tests set for their attacher, which may get no processor time for seconds.
#ifdef MEMHOOK_TEST_PATIENCE_NS
inline constexpr bool has_test_patience = true;
inline constexpr int64_t test_patience_ns = MEMHOOK_TEST_PATIENCE_NS;
#else
inline constexpr bool has_test_patience = false;
inline constexpr int64_t test_patience_ns = 0;
#endif

// If the clock word does not advance for this long, the attacher is considered dead.
inline constexpr int64_t dead_attacher_ns = has_test_patience ? test_patience_ns : 300'000'000;

// Under a seccomp filter, a system call made by the hook might kill the program.
inline bool may_call_kernel() {
  // The target may have installed a seccomp filter since the attach.
  return trusted.may_call && __atomic_load_n(&control()->syscalls_filtered, __ATOMIC_RELAXED) == 0;
}

inline void rest_ns(int64_t ns) {
  if (may_call_kernel()) return sys::sleep_ns(ns);
  // The duration of a pause differs between processors, so this is only roughly the requested time.
  for (int64_t i = 0; i < ns; i += 32) cpu::pause();
}

// Nanoseconds since some fixed moment. Without the kernel's help, this clock is slower than real time, never faster.
inline int64_t waiting_clock() {
  if (may_call_kernel()) return sys::monotonic_ns();
  return static_cast<int64_t>(cpu::time_stamp() / cpu::most_counts_per_ns);
}

// Considers the attacher dead, because its clock word has stopped at `clock`. From here on, calls pass through until
// the attacher reports back. The gate is closed first: if a resume comes between the two stores, it finds `abandoned`
// still clear and opens the gate immediately, and the attacher assumes a gap that did not exist. In the opposite order,
// calls skipped between the stores would not be covered by any gap.
[[gnu::noinline, gnu::cold]] inline void suspend(uint64_t clock) {
  uint32_t epoch = gate_word();
  // A detach may have closed the gate, or another thread may have got here first.
  if (epoch != 0 && !(epoch & suspended))
    __atomic_compare_exchange_n(&gate().epoch, &epoch, epoch | suspended, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
  if (__atomic_load_n(&tally()->abandoned, __ATOMIC_RELAXED)) return;
  __atomic_store_n(&tally()->abandoned_ns, clock, __ATOMIC_RELAXED);
  __atomic_store_n(&tally()->abandoned, 1u, __ATOMIC_RELEASE);
  __atomic_store_n(&trusted.is_abandoned, true, __ATOMIC_RELAXED);
}

// State of a wait. `patience_ns`: maximum time for which the clock word may stand still.
class Wait {
 public:
  explicit Wait(int64_t patience_ns = dead_attacher_ns) : patience_ns_(patience_ns) {}

  // Waits for a short time. Returns false if the attacher is considered dead, so that nothing is recorded now.
  bool a_moment() {
    if (started_ == 0) started_ = waiting_clock();
    rest_ns(50'000);
    uint64_t clock = __atomic_load_n(&tally()->clock_ns, __ATOMIC_RELAXED);
    int64_t now = waiting_clock();
    if (clock != clock_ || still_since_ == 0) {
      clock_ = clock;
      still_since_ = now;
    } else if (now - still_since_ > patience_ns_) {
      suspend(clock);
      return false;
    }
    now_ = now;
    return true;
  }

  int64_t waited_ns() const { return now_ - started_; }

 private:
  int64_t patience_ns_;
  uint64_t clock_ = 0;
  int64_t started_ = 0, still_since_ = 0, now_ = 0;
};

}  // namespace memhook
