// Access runtime, linked into a program that is compiled for access data: the functions that the compiled code calls
// before each read and write. They only check whether there is a listener.
//
// memhook-rs finds the listener by a note in the file, and exchanges it like slots of functions. It is never null:
// while there is no listener, it points to nobody_listens().
//
// clang -fsanitize-coverage=trace-loads,trace-stores calls __sanitizer_cov_loadN and __sanitizer_cov_storeN
// (SanitizerCoverage.rst, "Tracing data flow"). gcc -fsanitize=kernel-address with --param
// asan-instrumentation-with-call-threshold=0 calls __asan_loadN_noabort and __asan_storeN_noabort
// (gcc/sanitizer.def).
#include <stdint.h>

#define MEMHOOK_CALLED_BY_COMPILER extern "C" [[gnu::visibility("default")]] void

namespace {
void nobody_listens(uintptr_t, uintptr_t) {}
}  // namespace

extern "C" {
using Listener = void(uintptr_t address, uintptr_t what);
[[gnu::visibility("hidden"), gnu::used]] Listener* memhook_access_listener = nobody_listens;
}

// Name "memhook", type 1: the distance from this note to the listener. The note is loaded into memory, so that a
// stripped file has it too.
asm(R"(
  .pushsection .note.memhook.access, "a", %note
  .balign 4
  .long 8, 8, 1
  .asciz "memhook"
  .quad memhook_access_listener - .
  .popsection
)");

namespace {
[[gnu::always_inline]] inline void tell(const void* address, uintptr_t bytes, bool is_write) {
  Listener* listener = __atomic_load_n(&memhook_access_listener, __ATOMIC_ACQUIRE);
  if (__builtin_expect(listener != nobody_listens, 0))
    listener(reinterpret_cast<uintptr_t>(address), bytes << 1 | (is_write ? 1 : 0));
}
}  // namespace

#define MEMHOOK_SIZE(bytes)                                                                         \
  MEMHOOK_CALLED_BY_COMPILER __sanitizer_cov_load##bytes(const void* p) { tell(p, bytes, false); }  \
  MEMHOOK_CALLED_BY_COMPILER __sanitizer_cov_store##bytes(const void* p) { tell(p, bytes, true); }  \
  MEMHOOK_CALLED_BY_COMPILER __asan_load##bytes(const void* p) { tell(p, bytes, false); }           \
  MEMHOOK_CALLED_BY_COMPILER __asan_store##bytes(const void* p) { tell(p, bytes, true); }           \
  MEMHOOK_CALLED_BY_COMPILER __asan_load##bytes##_noabort(const void* p) { tell(p, bytes, false); } \
  MEMHOOK_CALLED_BY_COMPILER __asan_store##bytes##_noabort(const void* p) { tell(p, bytes, true); }
MEMHOOK_SIZE(1)
MEMHOOK_SIZE(2)
MEMHOOK_SIZE(4)
MEMHOOK_SIZE(8)
MEMHOOK_SIZE(16)

#define MEMHOOK_RANGE(name, is_write) \
  MEMHOOK_CALLED_BY_COMPILER name(const void* p, uintptr_t bytes) { tell(p, bytes, is_write); }
MEMHOOK_RANGE(__asan_loadN, false)
MEMHOOK_RANGE(__asan_loadN_noabort, false)
MEMHOOK_RANGE(__asan_storeN, true)
MEMHOOK_RANGE(__asan_storeN_noabort, true)

// For code that compilers do not instrument: memhook_access.h.
MEMHOOK_RANGE(memhook_reads, false)
MEMHOOK_RANGE(memhook_writes, true)

// gcc also calls these functions for shadow memory, which does not exist here.
MEMHOOK_CALLED_BY_COMPILER __asan_handle_no_return() {}
MEMHOOK_CALLED_BY_COMPILER __asan_before_dynamic_init(const char*) {}
MEMHOOK_CALLED_BY_COMPILER __asan_after_dynamic_init() {}
MEMHOOK_CALLED_BY_COMPILER __asan_register_globals(void*, uintptr_t) {}
MEMHOOK_CALLED_BY_COMPILER __asan_unregister_globals(void*, uintptr_t) {}
MEMHOOK_CALLED_BY_COMPILER __asan_init() {}
MEMHOOK_CALLED_BY_COMPILER __asan_version_mismatch_check_v8() {}
