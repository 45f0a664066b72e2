// Plants blocks and exits in the way that argument 1 names, all during the trace.
#include <pthread.h>

#include <csignal>

#include "target.hpp"

using namespace target;

[[gnu::noinline]] static void leak_at_the_end() { keep(malloc(654)); }

// The new program is this same file. It prints "again" instead, and is not traced.
static void* become_another(void* name) {
  execl("/proc/self/exe", static_cast<char*>(name), "again", nullptr);
  _exit(1);
}

int main(int, char** arguments) {
  const char* end = arguments[1];
  ready();
  for (int i = 0; i < 50; i++) leak_at_the_end();
  if (strcmp(end, "exit") == 0) exit(0);
  if (strcmp(end, "_exit") == 0) _exit(0);
  if (strcmp(end, "kill") == 0) raise(SIGKILL);
  if (strcmp(end, "segv") == 0) raise(SIGSEGV);
  if (strcmp(end, "exec") == 0) become_another(arguments[0]);
  if (strcmp(end, "exec_by_thread") == 0) {
    // The process keeps its id; the thread with this id exits (execve(2)).
    pthread_t thread;
    pthread_create(&thread, nullptr, become_another, arguments[0]);
    pthread_join(thread, nullptr);
  }
  done();
}
