// One thread forks children constantly. Each child lives until fifty more have been forked. Another
// thread allocates. The initial thread waits for the end of the input.
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "target.hpp"

using namespace target;

static void* forks(void*) {
  static pid_t children[50];
  for (size_t i = 0;; i = (i + 1) % 50) {
    if (children[i]) {
      kill(children[i], SIGKILL);
      waitpid(children[i], nullptr, 0);
    }
    children[i] = fork();
    if (children[i] == 0) {
      // Safety limit: the program normally ends when its input does.
      alarm(20);
      for (;;) pause();
    }
    usleep(300);
  }
}

static void* allocates(void*) {
  for (;;) {
    void* block = malloc(100);
    keep(block);
    free(block);
    usleep(1000);
  }
}

int main() {
  pthread_t thread;
  pthread_create(&thread, nullptr, forks, nullptr);
  pthread_create(&thread, nullptr, allocates, nullptr);
  ready();
}
