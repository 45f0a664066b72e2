// The probes otel_memory:alloc and otel_memory:free, as user-space statically defined tracing: a `nop` that the kernel
// replaces with a breakpoint while there is a listener, and a note in the file with its address.
//
// The notes have the format of SystemTap's <sys/sdt.h> (UserSpaceProbeImplementation in its wiki). The arguments are in
// the registers that pass function arguments (psABI, 3.2.3), because a listener may read them there without consulting
// the note. Each probe is a single address, in a function of its own: a listener that counts addresses would count an
// inlined probe several times.
//
// The `nop` is one byte long. Linux 6.18 and later replace a five-byte `nop` with a call, which overwrites data of a
// leaf function below its stack pointer.
#pragma once
#include <stdint.h>

namespace memhook {

// Number of listeners, maintained by the kernel (the semaphores of the notes). The first two bytes are for alloc and
// the other two for free, so that one load reads both. The kernel finds the counters by their offset in the mapped
// file, so they cannot be in anonymous memory.
extern "C" [[gnu::visibility("hidden")]] uint32_t memhook_listeners;

#define MEMHOOK_NOTE(name, semaphore, arguments)                          \
  "990: nop\n"                                                            \
  ".pushsection .note.stapsdt,\"\",\"note\"\n"                            \
  ".balign 4\n"                                                           \
  ".4byte 992f-991f, 994f-993f, 3\n"                                      \
  "991: .asciz \"stapsdt\"\n"                                             \
  "992: .balign 4\n"                                                      \
  "993: .8byte 990b, _.stapsdt.base, " semaphore                          \
  "\n"                                                                    \
  ".asciz \"otel_memory\"\n"                                              \
  ".asciz \"" name                                                        \
  "\"\n"                                                                  \
  ".asciz \"" arguments                                                   \
  "\"\n"                                                                  \
  "994: .balign 4\n"                                                      \
  ".popsection\n"                                                         \
  ".ifndef _.stapsdt.base\n"                                              \
  ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n" \
  ".weak _.stapsdt.base\n"                                                \
  ".hidden _.stapsdt.base\n"                                              \
  "_.stapsdt.base: .space 1\n"                                            \
  ".size _.stapsdt.base, 1\n"                                             \
  ".popsection\n"                                                         \
  ".endif\n"

// Makes the calling function keep a frame: bpf_get_stack() and perf follow rbp, and find the program's frames above
// ours.
[[gnu::always_inline]] inline void keep_frame() { asm volatile("" : : "r"(__builtin_frame_address(0))); }

// Reports a drawn allocation to listeners.
[[gnu::noinline, gnu::cold, gnu::noclone]] inline void fire_alloc(uint64_t block, uint64_t size, uint64_t weighted) {
  keep_frame();
  asm volatile(MEMHOOK_NOTE("alloc", "memhook_listeners", "8@%%rdi 8@%%rsi 8@%%rdx")
               :
               : "D"(block), "S"(size), "d"(weighted)
               : "memory");
}

// Reports the release of a block whose allocation was reported to listeners.
[[gnu::noinline, gnu::cold, gnu::noclone]] inline void fire_free(uint64_t block) {
  keep_frame();
  asm volatile(MEMHOOK_NOTE("free", "memhook_listeners + 2", "8@%%rdi") : : "D"(block) : "memory");
}

#undef MEMHOOK_NOTE

}  // namespace memhook
