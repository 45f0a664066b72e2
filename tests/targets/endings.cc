// Plants blocks and ends as argument 1 says, all while it is traced.
#include <csignal>

#include "target.hpp"

using namespace target;

[[gnu::noinline]] static void leak_at_the_end() { keep(malloc(654)); }

int main(int, char** arguments) {
  const char* end = arguments[1];
  ready();
  for (int i = 0; i < 50; i++) leak_at_the_end();
  if (strcmp(end, "exit") == 0) exit(0);
  if (strcmp(end, "_exit") == 0) _exit(0);
  if (strcmp(end, "kill") == 0) raise(SIGKILL);
  if (strcmp(end, "segv") == 0) raise(SIGSEGV);
  if (strcmp(end, "exec") == 0) {
    // The new program is of this file too; it says "again" instead, and is not traced.
    execl("/proc/self/exe", arguments[0], "again", nullptr);
    return 1;
  }
  done();
}
