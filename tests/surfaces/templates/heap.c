// Source of heap-mallocng.snapshot, heap-mimalloc.snapshot and heap-tcmalloc.snapshot (musl 1.2.3, mimalloc 2.0.9,
// gperftools 2.10), which were made in /opt/heap with an empty environment:
//   musl-gcc -static -O1 heap.c -o heap, gcc -O1 heap.c -o heap -pthread -Wl,--no-as-needed -l:libmimalloc.so.2 (or
//   -l:libtcmalloc_minimal.so.4)
//   env -i PATH=/usr/bin ./heap & sleep 1; memhook-rs scan --save heap.snapshot $!
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct node {
  struct node* next;
  char text[40];
};
struct node* list;
void* kept[64];
int count;

static void* zeros(size_t bytes) { return memset(malloc(bytes), 0, bytes); }

static void* thread(void* blocks) {
  // These blocks are released by a different thread than the allocating thread.
  for (int i = 0; i < 8; i++) free(((void**)blocks)[i]);
  for (int i = 0; i < 12; i++) {
    void* block = zeros(48 * (i + 1));
    if (i % 2) {
      kept[count++] = block;
    } else {
      free(block);
    }
  }
  pause();
  return NULL;
}

int main(void) {
  void* others[8];
  pthread_t id;
  for (int i = 0; i < 40; i++) {
    struct node* node = zeros(sizeof *node);
    node->next = list;
    list = node;
  }
  for (int i = 0; i < 30; i++) {
    void* block = zeros((size_t)16 << i % 8);
    if (i % 3) {
      free(block);
    } else {
      kept[count++] = block;
    }
  }
  // These are leaked.
  for (uintptr_t i = 0; i < 9; i++) {
    if (!zeros(100 + i * 40)) return 1;
  }
  kept[count++] = zeros(200000);
  for (int i = 0; i < 8; i++) others[i] = zeros(64);
  pthread_create(&id, NULL, thread, others);
  pthread_join(id, NULL);
}
