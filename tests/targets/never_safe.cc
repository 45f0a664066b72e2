// Stays inside dl_iterate_phdr, which holds a lock of the loader: asleep ("asleep"), busy ("busy"),
// or with a second thread that sleeps elsewhere ("beside").
#include <link.h>

#include <atomic>
#include <thread>

#include "target.hpp"

using namespace target;

static bool is_busy;

static int stay(dl_phdr_info*, size_t, void*) {
  say("ready");
  // Spins in its own code, because a thread inside a function of the C library is never at a safe
  // point.
  if (is_busy) {
    std::atomic<bool> goes_on = true;
    while (goes_on) asm volatile("pause");
  }
  wait_for_byte();
  return 1;
}

int main(int, char** arguments) {
  is_busy = !strcmp(arguments[1], "busy");
  keep(malloc(100));
  if (!strcmp(arguments[1], "beside")) std::thread([] { pause(); }).detach();
  dl_iterate_phdr(stay, nullptr);
  say("out");
  wait_for_byte();
}
