// A program that generates code and changes its own code. One function is in memory that the
// program has made writable. A second function was overwritten and is read-only again. A third
// function is generated at run time. A fourth function is in an unnamed file that is mapped once
// for writing and twice for execution, as JIT compilers do.
#include <cstdint>
#include <sys/mman.h>

#include "target.hpp"

using namespace target;

#define FUNCTION(name) \
  extern "C" __attribute__((noinline, aligned(4096))) int name(int number) { \
    asm volatile("" : "+r"(number)); \
    return number * 3 + 1; \
  }
FUNCTION(opened)
FUNCTION(written_over)
FUNCTION(untouched)

static void* page_of(int (*function)(int)) { return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(function) & ~4095ul); }

// mov eax, NUMBER; ret
static void write_code(void* at, uint32_t number) {
  auto* code = static_cast<unsigned char*>(at);
  code[0] = 0xb8;
  memcpy(code + 1, &number, 4);
  code[5] = 0xc3;
}

int main() {
  CHECK(mprotect(page_of(opened), 4096, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
  CHECK(mprotect(page_of(written_over), 4096, PROT_READ | PROT_WRITE) == 0);
  write_code(reinterpret_cast<void*>(written_over), 42);
  CHECK(mprotect(page_of(written_over), 4096, PROT_READ | PROT_EXEC) == 0);
  void* made = mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(made != MAP_FAILED);
  int file = memfd_create("made_code", MFD_CLOEXEC);
  CHECK(file >= 0 && ftruncate(file, 4096) == 0);
  void* written = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  void* run[2];
  for (void*& place : run) {
    place = mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_SHARED, file, 0);
    CHECK(place != MAP_FAILED);
  }
  CHECK(written != MAP_FAILED);
  write_code(written, 43);
  auto* call_made = reinterpret_cast<int (*)(int)>(made);
  ready();
  for (int round = 0; round < 1000; round++) {
    // Each round changes the code that it then calls.
    write_code(made, static_cast<uint32_t>(round));
    CHECK(call_made(0) == round);
    CHECK(opened(round) == round * 3 + 1);
    CHECK(written_over(round) == 42);
    for (void* place : run) CHECK(reinterpret_cast<int (*)(int)>(place)(0) == 43);
    CHECK(untouched(round) == round * 3 + 1);
  }
  done();
  return 0;
}
