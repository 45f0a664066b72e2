// Entry points for calls of described functions.
//
// A wrapper in C++ knows its arguments; here they are unknown. So everything is passed to the original unchanged: the
// vector registers, which the hook never uses, and every general-purpose register. This includes registers that the ABI
// lets a callee change, because a compiler that has seen both sides may rely on them (gcc's -fipa-ra). The original's
// result, and the values that it leaves in other registers, are passed back in the same way.
//
// A call that is only examined is passed on by a jump, so that no frame of ours is on the stack. If the result is
// needed, the original is called from this code. That is a call and a return for the processor's shadow stack, and an
// ordinary frame for longjmp and for exceptions, which find its call frame information below. If the original switches
// to another coroutine, the frame is a part of the coroutine's own stack. The disadvantage is that the original would
// not find arguments on the stack, so the attacher refuses functions with such arguments.
//
// There is one stub for each function and variant. All stubs have the same frame, by words below rbp:
//
//   0         the caller's rbp; the return address is above it
//   -1        number of the stub; later the original
//   -2 .. -7  rdi, rsi, rdx, rcx, r8, r9: the arguments
//   -8 .. -10 rax, r10, r11
//   -11 ..    for described.hpp
#pragma once
#include <stdint.h>

namespace memhook {

inline constexpr uint64_t described_stub_bytes = 16;
extern "C" [[gnu::visibility("hidden")]] const unsigned char memhook_described_stubs[];

// Returns true if the original is to be called from here, with memhook_described_end called afterwards.
extern "C" [[gnu::visibility("hidden"), gnu::used]] uint64_t memhook_described_begin(uint64_t* frame);
extern "C" [[gnu::visibility("hidden"), gnu::used]] void memhook_described_end(uint64_t* frame, uint64_t result);

asm(R"(
  .text
  .balign 16
  .hidden memhook_described_stubs
  .globl memhook_described_stubs
  .type memhook_described_stubs, @function
memhook_described_stubs:
  .cfi_startproc
  .set number, 0
  .rept 128
  .balign 16
  .cfi_def_cfa %rsp, 8
  .cfi_restore %rbp
  push %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  mov %rsp, %rbp
  .cfi_def_cfa_register %rbp
  push $number
  jmp memhook_described
  .set number, number + 1
  .endr
  .balign 16
  .cfi_endproc
  .size memhook_described_stubs, . - memhook_described_stubs

  .type memhook_described, @function
memhook_described:
  .cfi_startproc
  .cfi_def_cfa %rbp, 16
  .cfi_offset %rbp, -16
  push %rdi
  push %rsi
  push %rdx
  push %rcx
  push %r8
  push %r9
  push %rax
  push %r10
  push %r11
  sub $32, %rsp
  mov %rbp, %rdi
  call memhook_described_begin
  test %eax, %eax
  mov -80(%rbp), %r11
  mov -72(%rbp), %r10
  mov -64(%rbp), %rax
  mov -56(%rbp), %r9
  mov -48(%rbp), %r8
  mov -40(%rbp), %rcx
  mov -32(%rbp), %rdx
  mov -24(%rbp), %rsi
  mov -16(%rbp), %rdi
  jz 1f
  call *-8(%rbp)
  push %rax
  push %rdx
  push %rcx
  push %rsi
  push %rdi
  push %r8
  push %r9
  push %r10
  push %r11
  sub $8, %rsp
  mov %rbp, %rdi
  mov %rax, %rsi
  call memhook_described_end
  add $8, %rsp
  pop %r11
  pop %r10
  pop %r9
  pop %r8
  pop %rdi
  pop %rsi
  pop %rcx
  pop %rdx
  pop %rax
  leave
  .cfi_remember_state
  .cfi_def_cfa %rsp, 8
  .cfi_restore %rbp
  ret
1:
  .cfi_restore_state
  leave
  .cfi_def_cfa %rsp, 8
  .cfi_restore %rbp
  // This word is below the stack pointer, but within the red zone, which signal handlers do not change (psABI 3.2.2).
  jmp *-16(%rsp)
  .cfi_endproc
  .size memhook_described, . - memhook_described
)");

}  // namespace memhook
