// A call through code that an unwinder does not know, but can nevertheless unwind through.
//
// A hook that is mapped without the loader has no call frame information that an unwinder of the process would find, so
// an exception could not pass through a frame of the hook. If an exception may propagate out of a call, this code is
// put between caller and original. It creates a frame with a frame pointer that looks like the frame of a function in
// another module: rbx and the other registers that this function saves are at the same offsets. The original returns to
// an instruction `call *%rbx` of that function (memhook_unwind::passage finds one), which leads the thread back to this
// code. An unwinder looks up that function, finds the registers and the return address of our caller, and continues
// there. Nothing else ever returns there, and the module is never unloaded.
//
// Cannot be used with a shadow stack, which would see a return without a call.
//
// The frame, by bytes from rbp:
//
//   8      the return address into the caller
//   0      the caller's rbp
//   -8 ..  registers at offsets from the attacher, where the unwinder finds them; from -64 on, those it does not read
//   -160   PassedCall, which no other code reads
#pragma once
#include <stdint.h>

namespace memhook {

// A call in progress through the passage.
struct PassedCall {
  uint64_t a, b;  // its arguments
  uint64_t size;  // requested bytes
  uint64_t function;
  uint64_t original;
  uint64_t decided;
  void* ring;
  uint64_t rbx;
};
static_assert(sizeof(PassedCall) == 64);

// Address of the instruction, or 0 if there is none; and the places where rbx, r12, r13, r14 and r15 are saved,
// relative to rbp.
struct Passage {
  uint64_t code;
  int64_t saved[5];
};
inline constexpr int64_t lowest_saved = -48, first_unsaved = -64;

// Calls `original(a, b)` through the passage, or jumps to `original` if the call is not to be recorded.
extern "C" [[gnu::visibility("hidden")]] void* memhook_pass(uint64_t a, uint64_t b, uint64_t size, uint64_t function,
                                                            uint64_t original);
// Returns true if memhook_pass_end is to be called.
extern "C" [[gnu::visibility("hidden"), gnu::used]] uint64_t memhook_pass_begin(const uint64_t* frame,
                                                                                PassedCall* call);
extern "C" [[gnu::visibility("hidden"), gnu::used]] void* memhook_pass_end(const uint64_t* frame, PassedCall* call,
                                                                           void* block);
extern "C" {
[[gnu::visibility("hidden"), gnu::used]] inline Passage memhook_passage;
}

asm(R"(
  .text
  .hidden memhook_pass
  .globl memhook_pass
  .type memhook_pass, @function
memhook_pass:
  .cfi_startproc
  push %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  mov %rsp, %rbp
  .cfi_def_cfa_register %rbp
  sub $160, %rsp
  mov %rdi, (%rsp)
  mov %rsi, 8(%rsp)
  mov %rdx, 16(%rsp)
  mov %rcx, 24(%rsp)
  mov %r8, 32(%rsp)
  mov %rbx, 56(%rsp)
  lea memhook_passage(%rip), %rax
  mov 8(%rax), %rcx
  mov %rbx, (%rbp,%rcx)
  mov 16(%rax), %rcx
  mov %r12, (%rbp,%rcx)
  mov 24(%rax), %rcx
  mov %r13, (%rbp,%rcx)
  mov 32(%rax), %rcx
  mov %r14, (%rbp,%rcx)
  mov 40(%rax), %rcx
  mov %r15, (%rbp,%rcx)
  mov %rbp, %rdi
  mov %rsp, %rsi
  call memhook_pass_begin
  test %eax, %eax
  mov 32(%rsp), %r11
  mov 8(%rsp), %rsi
  mov (%rsp), %rdi
  jz 1f
  lea 2f(%rip), %rbx
  push memhook_passage(%rip)
  jmp *%r11
2:
  add $8, %rsp
  mov 56(%rsp), %rbx
  mov %rbp, %rdi
  mov %rsp, %rsi
  mov %rax, %rdx
  call memhook_pass_end
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
  jmp *%r11
  .cfi_endproc
  .size memhook_pass, . - memhook_pass
)");

}  // namespace memhook
