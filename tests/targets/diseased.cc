// A service with one memory problem, which its argument names. It works until it gets a byte,
// prints its resident memory, applies the remedy that only a program can apply, and prints its
// resident memory again.
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>

#include "target.hpp"

using namespace target;

static constexpr int many = 40'000, threads_of_arenas = 64;
static void* pinned[many / 40];
static void* passing[many];

static bool is(const char* name, const char* what) { return strcmp(name, what) == 0; }

[[gnu::noinline]] static void* filled(size_t size) {
  void* block = malloc(size);
  CHECK(block);
  memset(block, 0x5a, size);
  return block;
}

// Nothing points to this block.
[[gnu::noinline]] static void lose() {
  void* block = filled(20'000);
  keep(block);
}

struct Entry {
  Entry* next;
  char text[20'000];
};
static Entry* cache;
[[gnu::noinline]] static void remember() {
  auto* entry = static_cast<Entry*>(filled(sizeof(Entry)));
  entry->next = cache;
  cache = entry;
}

// A cache at its limit, whose blocks are all replaced within half a minute.
static void* bounded[5000];
static size_t oldest;
[[gnu::noinline]] static void replace_oldest() {
  free(bounded[oldest]);
  bounded[oldest] = filled(6000);
  oldest = (oldest + 1) % (sizeof bounded / sizeof *bounded);
}

[[gnu::noinline]] static void* pin() {
  void* block = filled(200);
  keep(block);
  return block;
}

// Heap use peaks and falls. With `pins`, one in forty blocks stays live, scattered among the
// released blocks.
[[gnu::noinline]] static void peak(bool pins, int size) {
  for (int i = 0; i < many; i++) {
    if (pins && i % 40 == 0) pinned[i / 40] = pin();
    passing[i] = filled(static_cast<size_t>(size));
  }
  // Without this block, the allocator would return the end of the heap to the system.
  keep(pin());
  for (void*& block : passing) {
    free(block);
    block = nullptr;
  }
}

static pthread_barrier_t together;
static pthread_mutex_t one_by_one = PTHREAD_MUTEX_INITIALIZER;
static void* in_an_arena(void*) {
  void* blocks[400];
  // With one arena, each thread would reuse the blocks that the previous thread released.
  pthread_mutex_lock(&one_by_one);
  for (void*& block : blocks) block = filled(4000);
  void* last = filled(100);
  for (void* block : blocks) free(block);
  pthread_mutex_unlock(&one_by_one);
  pthread_barrier_wait(&together);
  // Waits until the end.
  pthread_barrier_wait(&together);
  free(last);
  return nullptr;
}

// Allocates as many blocks of each size as a thread cache holds.
static void* in_caches(void*) {
  void* blocks[7];
  for (size_t size = 24; size <= 1032; size += 16) {
    for (void*& block : blocks) block = filled(size);
    for (void* block : blocks) free(block);
  }
  pthread_barrier_wait(&together);
  pthread_barrier_wait(&together);
  return nullptr;
}

[[gnu::noinline]] static void deep_in_the_stack() {
  char room[200'000];
  memset(room, 1, sizeof room);
  keep(room);
}
static void* on_a_stack(void*) {
  deep_in_the_stack();
  pthread_barrier_wait(&together);
  pthread_barrier_wait(&together);
  return nullptr;
}

static constexpr size_t mapped_bytes = 100'000;
static void* mapped[20'000];
static int mappings;
static void map_more() {
  void* room = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(room != MAP_FAILED && mappings < 20'000);
  memset(room, 1, mapped_bytes);
  mapped[mappings++] = room;
}
static void unmap_all() {
  while (mappings > 0) munmap(mapped[--mappings], mapped_bytes);
}

// One buffer that is never emptied.
static char* text;
static size_t text_bytes;
[[gnu::noinline]] static void append() {
  text = static_cast<char*>(realloc(text, text_bytes + 20'000));
  CHECK(text);
  memset(text + text_bytes, 'x', 20'000);
  text_bytes += 20'000;
}

// One half is read repeatedly, the other half never.
[[gnu::used]] static char* forgotten[1000];
static char* used[1000];
[[gnu::noinline]] static void load_and_forget(int i) { forgotten[i] = static_cast<char*>(filled(20'000)); }
[[gnu::noinline]] static void load_and_use(int i) { used[i] = static_cast<char*>(filled(20'000)); }
static int loaded;
static void load_both() {
  if (loaded < 1000) {
    load_and_forget(loaded);
    load_and_use(loaded);
    loaded++;
  }
  for (int i = 0; i < loaded; i++)
    for (int at = 0; at < 20'000; at += 4096) used[i][at]++;
}

// Only a tenth of each huge page is in use.
static char* room;
static void use_little_of_huge_pages() {
  constexpr size_t huge = 2 << 20, pages = 32;
  room = static_cast<char*>(aligned_alloc(huge, pages * huge));
  CHECK(room);
  madvise(room, pages * huge, MADV_HUGEPAGE);
  for (size_t page = 0; page < pages; page++) memset(room + page * huge, 1, huge / 10);
}

static void say_resident(const char* when) {
  FILE* file = fopen("/proc/self/statm", "r");
  char text[64], line[64];
  CHECK(file && fgets(text, sizeof text, file));
  fclose(file);
  long all, resident;
  CHECK(sscanf(text, "%ld %ld", &all, &resident) == 2);
  snprintf(line, sizeof line, "%s %ld", when, resident * 4096);
  say(line);
}

int main(int, char** arguments) {
  const char* disease = arguments[1];
  // The remedy of `huge`.
  if (getenv("NO_HUGE_PAGES")) prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  ready();
  // Only one page in ten contains a pin, so whole pages in between are free. With blocks of a tenth
  // of a page, every page would contain a pin.
  if (is(disease, "peak")) peak(false, 1000);
  if (is(disease, "pins")) {
    peak(true, 60);
    malloc_trim(0);
  }
  if (is(disease, "huge")) use_little_of_huge_pages();
  if (is(disease, "bounded")) for (void*& block : bounded) block = filled(6000);
  pthread_t threads[threads_of_arenas];
  void* (*work)(void*) = is(disease, "arenas")   ? in_an_arena
                         : is(disease, "caches") ? in_caches
                         : is(disease, "stacks") ? on_a_stack
                                                 : nullptr;
  bool has_threads = work != nullptr;
  if (has_threads) {
    pthread_barrier_init(&together, nullptr, threads_of_arenas + 1);
    for (pthread_t& thread : threads) CHECK(pthread_create(&thread, nullptr, work, nullptr) == 0);
    pthread_barrier_wait(&together);
  }
  say("sick");
  for (;;) {
    fd_set in;
    FD_ZERO(&in);
    FD_SET(0, &in);
    timeval pause = {0, 5'000};
    if (select(1, &in, nullptr, nullptr, &pause) != 0) break;
    if (is(disease, "leak")) lose();
    if (is(disease, "cache")) remember();
    if (is(disease, "bounded")) replace_oldest();
    if (is(disease, "mappings")) map_more();
    if (is(disease, "realloc")) append();
    if (is(disease, "untouched")) load_both();
    free(filled(3000));
  }
  wait_for_byte();
  say_resident("before");
  if (is(disease, "pins")) {
    for (void* block : pinned) free(block);
    malloc_trim(0);
  }
  // These threads only have to stop: their memory no longer grows.
  while (cache) {
    Entry* next = cache->next;
    free(cache);
    cache = next;
  }
  free(text);
  if (is(disease, "mappings")) unmap_all();
  if (is(disease, "leak")) wait_for_byte();
  malloc_trim(0);
  if (has_threads) {
    pthread_barrier_wait(&together);
    for (pthread_t& thread : threads) CHECK(pthread_join(thread, nullptr) == 0);
  }
  say_resident("after");
  done();
}
