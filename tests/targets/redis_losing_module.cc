// A redis module that leaks seven blocks when it is loaded. It declares the necessary parts of
// redismodule.h itself.
#include <cstddef>
#include <cstring>

using GetApi = int (*)(const char*, void*);
using SetAttributes = void (*)(void*, const char*, int, int);
using Alloc = void* (*)(size_t);

__attribute__((noinline)) static void lose(Alloc alloc) {
  for (int i = 0; i < 7; i++) {
    void* block = alloc(3000);
    memset(block, 0, 3000);
    asm volatile("" ::"r"(block) : "memory");
  }
}

// Overwrites remains of their addresses on the stack, which would keep the blocks alive.
__attribute__((noinline)) static void scrub_stack() {
  char room[65536];
  memset(room, 0, sizeof room);
  asm volatile("" ::"r"(room) : "memory");
}

extern "C" int RedisModule_OnLoad(void* context, void**, int) {
  // The first word of a context is the function that returns all others.
  auto get = *static_cast<GetApi*>(context);
  SetAttributes set_attributes = nullptr;
  Alloc alloc = nullptr;
  get("RedisModule_SetModuleAttribs", &set_attributes);
  get("RedisModule_Alloc", &alloc);
  if (!set_attributes || !alloc) return 1;
  set_attributes(context, "losing", 1, 1);
  lose(alloc);
  scrub_stack();
  return 0;
}
