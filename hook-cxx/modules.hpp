// Wrappers of dlopen, dlmopen and dlclose. They preserve the identity of the caller, and patch new modules before the
// call returns.
#pragma once
#include "patch.hpp"
#include "unwind.hpp"

namespace memhook {

// Time limit for an answer of the attacher to a request.
inline constexpr int64_t answer_patience_ns = 500'000'000;
// The time limit while the clock word does not advance.
inline constexpr int64_t answer_silence_ns = 100'000'000;

// Asks the attacher to examine the modules, and waits until it has done so. Returns false if the gate is closed, if the
// attacher's clock does not advance, or if the time limit, counted from `start`, has passed.
inline bool ask_for_modules(int64_t start) {
  const Control* c = control();
  uint32_t request = __atomic_add_fetch(&tally()->module_requests, 1, __ATOMIC_ACQ_REL);
  uint64_t clock = __atomic_load_n(&tally()->clock_ns, __ATOMIC_RELAXED);
  int64_t moved = waiting_clock();
  for (;;) {
    uint32_t answer = __atomic_load_n(&c->module_answers, __ATOMIC_ACQUIRE);
    if (static_cast<int32_t>(answer - request) >= 0) return true;
    sys::timespec64 timeout{0, 1'000'000};
    if (may_call_kernel())
      sys::call(sys::nr_futex, reinterpret_cast<long>(&c->module_answers), 0 /* FUTEX_WAIT */, answer,
                reinterpret_cast<long>(&timeout));
    else
      rest_ns(10'000);
    int64_t now = waiting_clock();
    uint64_t clock_now = __atomic_load_n(&tally()->clock_ns, __ATOMIC_RELAXED);
    if (clock_now != clock) {
      clock = clock_now;
      moved = now;
    }
    if (epoch_now() == 0 || now - moved > answer_silence_ns || now - start > answer_patience_ns) return false;
  }
}

// Returns the instruction that the attacher has chosen for calls on behalf of `caller`, from which unwinding continues
// correctly; 0 if there is none. `is_current`: true if the list is reliable even for modules that can be unloaded.
inline uint64_t listed_gadget(uint64_t caller, bool is_current) {
  for (int tries = 0; tries < 3; tries++) {
    uint64_t list = module_list(), count = list & 0xffff'ffff, gadget = 0;
    auto* modules = in_guide<ModuleEntry>(modules_offset) + ((list >> 32) & 1) * max_modules;
    for (uint64_t i = 0; i < count && i < max_modules; i++)
      if (caller >= modules[i].start && caller < modules[i].end && (is_current || modules[i].is_permanent))
        gadget = modules[i].ret_gadget;
    // As in find_rule().
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (module_list() == list) return gadget;
  }
  return 0;
}

// A method to call the loader on behalf of a function.
struct Way {
  // The instruction through which the call returns; 0 if none is known.
  uint64_t gadget;
  // The loader's counts before the call.
  uint64_t loader_count;
};

// Returns the method to call the loader on behalf of `caller`. The caller's code is not searched for the instruction,
// because it may be execute-only.
[[gnu::noinline, gnu::cold]] inline Way way_for(uint64_t caller) {
  uint64_t loader_count = 0;
  for (bool has_asked = false;; has_asked = true) {
    long current = with_loader_still(trusted.iterate_modules, [&](uint64_t count) -> long {
      tell_count(count);
      loader_count = count;
      return lists_are_current(count);
    });
    uint64_t gadget = listed_gadget(caller, current == 1);
    if (gadget || current == 1 || has_asked || !ask_for_modules(waiting_clock())) return {gadget, loader_count};
  }
}

// Tells the attacher that modules were loaded or unloaded, waits until it has written the new slots into the journal,
// and patches them. Repeats this if another thread loads or unloads modules in the meantime. If our system calls could
// do harm, the attacher patches the slots before it answers. Returns false on failure: calls by new modules are then
// not seen yet.
[[gnu::noinline, gnu::cold]] inline bool modules_changed() {
  if (epoch_now() == 0) return false;
  int64_t start = waiting_clock();
  with_loader_still(trusted.iterate_modules, [](uint64_t count) -> long {
    tell_count(count);
    return 0;
  });
  for (int tries = 0; tries < 3 && ask_for_modules(start); tries++)
    if (!may_call_kernel() || patch_pending() != stale) return true;
  return false;
}

// Runs after a call that may have opened libraries. Counts libraries whose calls may be missing from the trace. musl
// counts only the libraries that a program asks for, and not their dependencies.
[[gnu::noinline, gnu::cold]] inline void libraries_opened(uint64_t loader_count_before) {
  if (gate_word() == 0 || modules_changed() || gate_word() == 0) return;
  with_loader_still(trusted.iterate_modules, [=](uint64_t loader_count) -> long {
    uint64_t before = loader_count_before >> 32, now = loader_count >> 32;
    uint64_t until = __atomic_exchange_n(&tally()->unwatched_until, now, __ATOMIC_RELAXED);
    if (until > before) before = until;
    if (now > before) __atomic_fetch_add(&tally()->unwatched_libraries, now - before, __ATOMIC_RELAXED);
    return 0;
  });
}

// Runs before a call to the loader that the hook does not follow. The attacher checks the modules later.
[[gnu::noinline, gnu::cold]] inline void leaves_unfollowed() {
  __atomic_fetch_add(&tally()->module_requests, 1, __ATOMIC_ACQ_REL);
  __atomic_fetch_add(&tally()->unwatched_libraries, 1, __ATOMIC_RELAXED);
}

}  // namespace memhook
