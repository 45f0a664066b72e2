// A program that sets marks itself. It prints "ready" and then does the following for each line of
// its input: it allocates 10 blocks of 1,001 bytes, marks "one", allocates 20 blocks of 2,002 bytes
// on another thread, marks "two", allocates 30 blocks of 3,003 bytes, forks a child that marks
// "child", and prints whether a tracer listened.
#include <memhook_mark.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

// Volatile, so that no compiler removes the allocations.
static void* volatile kept[1000];
static int count;

__attribute__((noinline)) static void keep(int blocks, size_t bytes) {
  for (int i = 0; i < blocks; i++) kept[count++ % 1000] = malloc(bytes);
}

int main() {
  puts("ready");
  fflush(stdout);
  while (getchar() == '\n') {
    keep(10, 1001);
    memhook_mark("one");
    std::thread([] { keep(20, 2002); }).join();
    memhook_mark("two");
    keep(30, 3003);
    memhook_mark(nullptr);
    if (pid_t child = fork(); child == 0) {
      memhook_mark("child");
      _exit(0);
    } else {
      waitpid(child, nullptr, 0);
    }
    puts(memhook_mark_listener == memhook_nobody_marks ? "done alone" : "done listened to");
    fflush(stdout);
  }
}
