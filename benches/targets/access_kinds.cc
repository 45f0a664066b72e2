// Defines the callbacks that a compiler inserts for -fsanitize=kernel-address, for our programs.
// The callbacks count each access by the kind of memory. This file is linked into a program with
// one thread, and is itself compiled without callbacks. The last line on standard error has the
// number of accesses to the stack, to the program's own data, and to everything else, which is the
// heap.
#include <pthread.h>

#include <cstdint>
#include <cstdio>

extern "C" char __executable_start, end;

static uint64_t on_stack, in_program, in_heap;

static uintptr_t stack_end() {
  pthread_attr_t attributes;
  void* start = nullptr;
  size_t size = 0;
  if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
    pthread_attr_getstack(&attributes, &start, &size);
    pthread_attr_destroy(&attributes);
  }
  return reinterpret_cast<uintptr_t>(start) + size;
}

static void count(const void* pointer) {
  static const uintptr_t stack_top = stack_end();
  auto address = reinterpret_cast<uintptr_t>(pointer);
  auto frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  if (address >= frame && address < stack_top)
    on_stack++;
  else if (address >= reinterpret_cast<uintptr_t>(&__executable_start) && address < reinterpret_cast<uintptr_t>(&end))
    in_program++;
  else
    in_heap++;
}

#define OF_SIZE(bytes)                                                    \
  extern "C" void __asan_load##bytes##_noabort(const void* p) { count(p); } \
  extern "C" void __asan_store##bytes##_noabort(const void* p) { count(p); }
OF_SIZE(1)
OF_SIZE(2)
OF_SIZE(4)
OF_SIZE(8)
OF_SIZE(16)

extern "C" void __asan_loadN_noabort(const void* p, size_t) { count(p); }
extern "C" void __asan_storeN_noabort(const void* p, size_t) { count(p); }
extern "C" void __asan_handle_no_return() {}
extern "C" void __asan_before_dynamic_init(const char*) {}
extern "C" void __asan_after_dynamic_init() {}
extern "C" void __asan_init() {}
extern "C" void __asan_version_mismatch_check_v8() {}

// Linked with -Wl,--wrap=main,--wrap=_exit, because a program may return from main or call _exit.
extern "C" void __real__exit(int) __attribute__((noreturn));
extern "C" void __wrap__exit(int code) {
  fprintf(stderr, "%lu %lu %lu\n", on_stack, in_program, in_heap);
  __real__exit(code);
}
extern "C" int __real_main(int, char**);
extern "C" int __wrap_main(int argc, char** argv) {
  int code = __real_main(argc, argv);
  __wrap__exit(code);
  return code;
}
