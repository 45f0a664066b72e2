// A call that seems to come from another module.
#pragma once
#include <stdint.h>

namespace memhook {

// Calls `function` so that it sees the return address `gadget`, a `ret` instruction: glibc's dlopen takes its caller's
// RUNPATH, $ORIGIN and namespace from the module that contains its return address. Stack at the entry of `function`:
// gadget, then our own continuation. Cannot be used with a shadow stack, which would see two returns for one call.
extern "C" [[gnu::visibility("hidden")]] void* memhook_call_via(uint64_t a, uint64_t b, uint64_t c, uint64_t function,
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

}  // namespace memhook
