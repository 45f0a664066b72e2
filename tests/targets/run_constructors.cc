// Allocates before main, in a constructor function and in the constructor of a global. Argument 1
// is the exit code, or the name of a signal that kills the program.
#include <csignal>

#include "target.hpp"

using namespace target;

[[gnu::constructor(101), gnu::noinline]] static void preinit() { keep(malloc(111)); }

struct Global {
  [[gnu::noinline]] Global() { keep(malloc(222)); }
} global;

int main(int, char** arguments) {
  keep(malloc(333));
  if (strcmp(arguments[1], "SIGSEGV") == 0) raise(SIGSEGV);
  if (strcmp(arguments[1], "SIGKILL") == 0) raise(SIGKILL);
  return atoi(arguments[1]);
}
