// dlopen, dlmopen, dlclose: the caller's identity is kept, and new modules are patched before the
// call returns.
#pragma once
#include "patch.hpp"
#include "unwind.hpp"

namespace memhook {

// A `ret` instruction behind the return address `caller`, in the same page: mapped and executable as
// long as the caller is. 0: there is none.
inline uint64_t ret_behind(uint64_t caller) {
  for (uint64_t pc = caller; (pc ^ caller) < 4096; pc++)
    if (*reinterpret_cast<const unsigned char*>(pc) == cpu::return_instruction) return pc;
  return 0;
}

// The instruction through which a call on behalf of `caller` returns. The attacher has chosen one for
// each module, at which unwinding goes on rightly; but what it knows may be out of date.
[[gnu::noinline, gnu::cold]] inline uint64_t ret_gadget_for(uint64_t caller) {
  // What relatives can write names no place to return through.
  if (trusted.is_shared) return ret_behind(caller);
  long current = with_loader_still(trusted.iterate_modules, [](uint64_t count) -> long {
    tell_count(count);
    return lists_are_current(count);
  });
  uint64_t list = module_list(), count = list & 0xffff'ffff;
  auto* modules = at<ModuleEntry>(modules_offset) + ((list >> 32) & 1) * max_modules;
  for (uint64_t i = 0; current == 1 && i < count && i < max_modules; i++)
    if (caller >= modules[i].start && caller < modules[i].end && modules[i].ret_gadget)
      return modules[i].ret_gadget;
  return ret_behind(caller);
}

inline void* call_as(uint64_t caller, uint64_t function, uint64_t a, uint64_t b, uint64_t c) {
  uint64_t gadget = ret_gadget_for(caller);
  if (gadget) return memhook_call_via(a, b, c, function, gadget);
  return reinterpret_cast<void* (*)(uint64_t, uint64_t, uint64_t)>(function)(a, b, c);
}

// A request of the target's to the attacher is given up after this.
inline constexpr int64_t answer_patience_ns = 500'000'000;
// The same if the clock word does not advance.
inline constexpr int64_t answer_silence_ns = 100'000'000;

// Asks the attacher to look at the modules and waits until it has. False: the gate is closed, the
// attacher's clock does not advance, or the time that began at `start` is over.
inline bool ask_for_modules(int64_t start) {
  Control* c = control();
  uint32_t request = __atomic_add_fetch(&c->module_requests, 1, __ATOMIC_ACQ_REL);
  uint64_t clock = __atomic_load_n(&c->clock_ns, __ATOMIC_RELAXED);
  int64_t moved = waiting_clock();
  for (;;) {
    uint32_t answer = __atomic_load_n(&c->module_answers, __ATOMIC_ACQUIRE);
    if (static_cast<int32_t>(answer - request) >= 0) return true;
    sys::timespec64 timeout{0, 1'000'000};
    if (may_call_kernel())
      sys::call(sys::nr_futex, reinterpret_cast<long>(&c->module_answers), 0 /* FUTEX_WAIT */,
                answer, reinterpret_cast<long>(&timeout));
    else
      rest_ns(10'000);
    int64_t now = waiting_clock();
    uint64_t clock_now = __atomic_load_n(&c->clock_ns, __ATOMIC_RELAXED);
    if (clock_now != clock) {
      clock = clock_now;
      moved = now;
    }
    if (epoch_now() == 0 || now - moved > answer_silence_ns || now - start > answer_patience_ns)
      return false;
  }
}

// Tells the attacher that modules came or went, waits until it has written the new slots into the
// journal, and patches them; again if another thread loads or unloads modules meanwhile. Where system calls of
// ours could be taken amiss, the attacher patches them before it answers.
[[gnu::noinline, gnu::cold]] inline void modules_changed() {
  if (epoch_now() == 0) return;
  int64_t start = waiting_clock();
  with_loader_still(trusted.iterate_modules, [](uint64_t count) -> long {
    tell_count(count);
    return 0;
  });
  for (int tries = 0; tries < 3 && ask_for_modules(start); tries++)
    if (!may_call_kernel() || trusted.is_shared || patch_pending() != stale) return;
}

}  // namespace memhook
