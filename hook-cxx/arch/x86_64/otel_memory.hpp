// The probes otel_memory:alloc and otel_memory:free, as user-space statically defined tracing has them: a `nop` that
// the kernel replaces by a breakpoint while somebody listens, and a note in the file that says where it is.
//
// The form of the notes is that of SystemTap's <sys/sdt.h> (UserSpaceProbeImplementation in its wiki). The arguments
// are where a function has them (psABI, 3.2.3), because a listener may take them from there and not look at the note.
// Each probe is one place, in a function of its own: who counts places would count an inlined one several times.
//
// A `nop` of one byte: in place of one of five bytes Linux 6.18 and later put a call, which overwrites what a leaf
// function keeps below its stack pointer.
#pragma once
#include <stdint.h>

namespace memhook {

// How many listen, which the kernel counts here (the semaphores of the notes): to alloc in the first two bytes, to free
// in the others, so that one load asks for both. The kernel finds them by their place in the mapped file, so they cannot
// be where memory has no file.
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

// Has the calling function keep a frame: bpf_get_stack() and perf follow rbp, and find the program's frames behind ours.
[[gnu::always_inline]] inline void keep_frame() { asm volatile("" : : "r"(__builtin_frame_address(0))); }

// Tells listeners of a drawn allocation.
[[gnu::noinline, gnu::cold, gnu::noclone]] inline void fire_alloc(uint64_t block, uint64_t size, uint64_t weighted) {
  keep_frame();
  asm volatile(MEMHOOK_NOTE("alloc", "memhook_listeners", "8@%%rdi 8@%%rsi 8@%%rdx")
               :
               : "D"(block), "S"(size), "d"(weighted)
               : "memory");
}

// Tells listeners that a block goes of which they were told.
[[gnu::noinline, gnu::cold, gnu::noclone]] inline void fire_free(uint64_t block) {
  keep_frame();
  asm volatile(MEMHOOK_NOTE("free", "memhook_listeners + 2", "8@%%rdi") : : "D"(block) : "memory");
}

#undef MEMHOOK_NOTE

}  // namespace memhook
