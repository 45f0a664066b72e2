// Threads keep patterns in vector and x87 registers and in the control words, and check them
// constantly. One thread allocates, so that there are events to trace.
#include <immintrin.h>

#include <atomic>
#include <thread>
#include <vector>

#include "target.hpp"

using namespace target;

static std::atomic<bool> stop{false};
static std::atomic<long> rounds{0};

[[gnu::target("avx2")]] static void guard_vectors(int seed) {
  __m256i pattern = _mm256_set1_epi64x(0x0123456789abcdefll * seed);
  unsigned control = _mm_getcsr();
  _mm_setcsr(control | 0x8000);  // flush to zero: a mode that a wrong restore would lose
  while (!stop) {
    __m256i a = pattern, b = pattern, c = pattern;
    for (int i = 0; i < 2000; i++)
      asm volatile("" : "+x"(a), "+x"(b), "+x"(c));  // must stay in registers
    __m256i same = _mm256_and_si256(_mm256_cmpeq_epi64(a, pattern),
                                    _mm256_and_si256(_mm256_cmpeq_epi64(b, pattern),
                                                     _mm256_cmpeq_epi64(c, pattern)));
    CHECK(_mm256_movemask_epi8(same) == -1);
    CHECK(_mm_getcsr() & 0x8000);
    rounds++;
  }
}

static void guard_x87() {
  while (!stop) {
    long double a = 1.25L, b;
    for (int i = 0; i < 2000; i++) asm volatile("" : "+t"(a));
    b = a * 4;
    CHECK(b == 5.0L);
    rounds++;
  }
}

static void allocate() {
  while (!stop) {
    for (int i = 0; i < 100; i++) free(malloc(static_cast<size_t>(i + 1)));
    rounds++;
  }
}

int main() {
  std::vector<std::thread> threads;
  if (__builtin_cpu_supports("avx2"))
    for (int i = 1; i <= 2; i++) threads.emplace_back(guard_vectors, i);
  threads.emplace_back(guard_x87);
  threads.emplace_back(allocate);
  say("ready");
  wait_for_byte();
  stop = true;
  for (auto& thread : threads) thread.join();
  CHECK(rounds > 100);
}
