// A C program for musl that keeps blocks until its end, in the way that a flag selects. With the argument LEAK it leaks
// one filled block.
#include <dlfcn.h>
#include <locale.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BLOCKS 200

static char* volatile kept[BLOCKS];

// The smallest of these blocks are in the unused parts of the pages with the C library's data, which also contain the
// descriptor of the initial thread.
static void keep(void) {
  for (int i = 0; i < BLOCKS; i++) kept[i] = malloc(50 + i);
  for (int i = 0; i < BLOCKS; i += 2) {
    free(kept[i]);
    kept[i] = 0;
  }
}

static void lose(void) {
  memset(kept[1], 1, 51);
  kept[1] = 0;
}

#ifdef THREADS
// Stacks of running threads are among the blocks that the allocator maps; only a stack has the address of one block.
static sem_t begun;
static pthread_mutex_t forever = PTHREAD_MUTEX_INITIALIZER;

static void* stay(void* unused) {
  char* volatile own = malloc(3000);
  char* volatile large = malloc(300000);
  sem_post(&begun);
  pthread_mutex_lock(&forever);
  free(own);
  free(large);
  return unused;
}

static void work(void) {
  sem_init(&begun, 0, 0);
  pthread_mutex_lock(&forever);
  for (int i = 0; i < 8; i++) {
    pthread_t thread;
    if (pthread_create(&thread, 0, stay, 0) != 0) _exit(7);
    kept[2 * i] = malloc(200000);
  }
  for (int i = 0; i < 8; i++) sem_wait(&begun);
}
#elif defined(LIBRARY)
static void work(void) {
  void* library = dlopen(LIBRARY, RTLD_NOW);
  if (!library) _exit(7);
  kept[0] = dlsym(library, "leak_in_library");
}
#elif defined(CONSTRUCTORS)
static char *volatile early, *volatile late;
__attribute__((constructor(101))) static void first(void) { early = malloc(4000); }
__attribute__((constructor)) static void second(void) { late = strdup("known to data alone"); }
__attribute__((destructor)) static void last(void) { free(late); }
static void work(void) {}
#elif defined(DATA)
// Some pointers are in .data, some in .bss, neither of which is a multiple of a page; pointers to blocks are at the
// ends of both.
static char* volatile filled[40000] = {(char*)filled};
static char* volatile empty[70001];
static void work(void) {
  filled[39999] = malloc(60);
  empty[70000] = malloc(61);
  for (int i = 1; i < 1000; i++) empty[i * 7] = malloc(16 + i);
}
#elif defined(THREAD_LOCAL)
// This array is too large for the loader's reserved space, so it is allocated among the blocks.
static _Thread_local char* volatile own[3000];
static void work(void) {
  for (int i = 0; i < 3000; i += 10) own[i] = malloc(16 + i % 100);
}
#else
// Makes the C library keep memory for the program.
static void work(void) {
  setenv("KEPT", "a value that is copied", 1);
  putenv(strdup("OTHER=value"));
  setlocale(LC_ALL, "C.UTF-8");
  tzset();
  if (!getenv("KEPT")) _exit(7);
  FILE* file = fopen("/dev/null", "w");
  if (!file) _exit(7);
  setvbuf(file, malloc(BUFSIZ), _IOFBF, BUFSIZ);
  fprintf(file, "kept");
  time_t now = time(0);
  kept[2] = strdup(ctime(&now));
}
#endif

int main(int count, char** arguments) {
  keep();
  work();
  if (count > 1 && strcmp(arguments[1], "LEAK") == 0) lose();
  return 0;
}
