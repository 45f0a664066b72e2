// dlopen, dlmopen, dlclose: the caller's identity is kept, and new modules are patched before the
// call returns.
#pragma once
#include "patch.hpp"
#include "unwind.hpp"

namespace memhook {

// Calls `function` so that it finds the return address `gadget`, a `ret` instruction: glibc's
// dlopen takes its caller's RUNPATH, $ORIGIN and namespace from the module that its return address
// lies in. Stack at the entry of `function`: gadget, then our own continuation.
// Not under a shadow stack, which would see two returns for one call.
extern "C" [[gnu::visibility("hidden")]] void* memhook_call_via(uint64_t a, uint64_t b, uint64_t c,
                                                                uint64_t function,
                                                                uint64_t gadget);
asm(R"(
  .text
  .hidden memhook_call_via
  .globl memhook_call_via
  .type memhook_call_via, @function
memhook_call_via:
  .cfi_startproc
  push %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  mov %rsp, %rbp
  .cfi_def_cfa_register %rbp
  sub $8, %rsp
  lea 1f(%rip), %rax
  push %rax
  push %r8
  jmp *%rcx
1:
  mov %rbp, %rsp
  pop %rbp
  .cfi_def_cfa %rsp, 8
  ret
  .cfi_endproc
  .size memhook_call_via, . - memhook_call_via
)");

inline void* call_as(uint64_t caller, uint64_t function, uint64_t a, uint64_t b, uint64_t c) {
  if (region) {
    uint64_t list = module_list(), count = list & 0xffff'ffff;
    auto* modules = at<ModuleEntry>(modules_offset) + ((list >> 32) & 1) * max_modules;
    for (uint64_t i = 0; i < count && i < max_modules; i++)
      if (caller >= modules[i].start && caller < modules[i].end && modules[i].ret_gadget)
        return memhook_call_via(a, b, c, function, modules[i].ret_gadget);
  }
  return reinterpret_cast<void* (*)(uint64_t, uint64_t, uint64_t)>(function)(a, b, c);
}

// Tells the attacher that modules came or went, waits until it has written the new slots into the
// journal, and patches them. Gives up when the attacher's clock stands still, and after 500 ms.
[[gnu::noinline, gnu::cold]] inline void modules_changed() {
  if (epoch_now() == 0) return;
  Control* c = control();
  uint32_t request = __atomic_add_fetch(&c->module_requests, 1, __ATOMIC_ACQ_REL);
  uint64_t clock = __atomic_load_n(&c->clock_ns, __ATOMIC_RELAXED);
  int64_t start = sys::monotonic_ns(), moved = start;
  for (;;) {
    uint32_t answer = __atomic_load_n(&c->module_answers, __ATOMIC_ACQUIRE);
    if (static_cast<int32_t>(answer - request) >= 0) break;
    sys::timespec64 timeout{0, 1'000'000};
    sys::call(sys::nr_futex, reinterpret_cast<long>(&c->module_answers), 0 /* FUTEX_WAIT */,
              answer, reinterpret_cast<long>(&timeout));
    int64_t now = sys::monotonic_ns();
    uint64_t clock_now = __atomic_load_n(&c->clock_ns, __ATOMIC_RELAXED);
    if (clock_now != clock) {
      clock = clock_now;
      moved = now;
    }
    if (epoch_now() == 0 || now - moved > 100'000'000 || now - start > 500'000'000) return;
  }
  patch_pending();
}

}  // namespace memhook
