// Facts about the processor, and the places where Linux saves its registers.
#pragma once
#include <stdint.h>

namespace memhook::cpu {

// The one-byte instruction by which a function returns.
inline constexpr unsigned char return_instruction = 0xc3;

// No time stamp counter runs at more than 5 GHz.
inline constexpr uint64_t most_counts_per_ns = 5;

// The signal trampoline finds a struct ucontext at rsp: its gregs begin at byte 40; rbp is word 10, rsp
// 15, rip 16 (asm/sigcontext.h).
inline constexpr uint64_t signal_frame_pointer = 40 + 10 * 8, signal_stack_pointer = 40 + 15 * 8,
                          signal_program_counter = 40 + 16 * 8;

// The first word of the TCB is its own address (psABI, TLS variant II).
inline uint64_t thread_pointer() {
  uint64_t pointer;
  asm("mov %%fs:0, %0" : "=r"(pointer));
  return pointer;
}

inline uint64_t time_stamp() { return __builtin_ia32_rdtsc(); }

inline void pause() { __builtin_ia32_pause(); }

}  // namespace memhook::cpu
