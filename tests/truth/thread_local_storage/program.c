#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static void (*touch)(void);
static pthread_barrier_t touched, end;

__attribute__((noinline)) static void leak_by_slot(void) {
  for (int i = 0; i < 30; i++) {
    void* block = malloc(500);
    __asm__ volatile("" : : "r"(block) : "memory");
  }
}

static void* touches(void* none) {
  touch();
  pthread_barrier_wait(&touched);
  pthread_barrier_wait(&end);
  return none;
}

static void say(const char* line, size_t length) {
  if (write(1, line, length) != (ssize_t)length) _exit(9);
}

static void wait_for_byte(void) {
  char byte;
  if (read(0, &byte, 1) < 0) _exit(5);
}

int main(int count, char** arguments) {
  void* library = count == 2 ? dlopen(arguments[1], RTLD_NOW) : NULL;
  if (library == NULL) return 3;
  touch = (void (*)(void))dlsym(library, "touch");
  if (touch == NULL) return 4;
  pthread_barrier_init(&touched, NULL, 9);
  pthread_barrier_init(&end, NULL, 9);
  say("ready\n", 6);
  wait_for_byte();
  leak_by_slot();
  pthread_t threads[8];
  for (int i = 0; i < 8; i++) {
    if (pthread_create(&threads[i], NULL, touches, NULL) != 0) return 6;
  }
  pthread_barrier_wait(&touched);
  say("done\n", 5);
  wait_for_byte();
  pthread_barrier_wait(&end);
  for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
  return 0;
}
