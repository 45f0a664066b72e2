// A server with its own allocators. One works like memcached's allocator: it divides pages from
// malloc into chunks of one size, and keeps released chunks in a list. The other maps its memory,
// and puts a header before each block. With an argument, it leaks nothing.
#include <sys/mman.h>

#include "target.hpp"

using namespace target;

#define APART [[gnu::noinline, gnu::noclone]] static
#define OWN extern "C" [[gnu::noinline, gnu::noclone]]

constexpr size_t page_bytes = 16384, chunk_bytes = 96, pages_most = 64;

struct Chunk {
  Chunk* next;
};

struct Slabs {
  Chunk* free = nullptr;
  char* pages[pages_most] = {};
  size_t count = 0, used = 0;
};

static Slabs items;

OWN void* slab_get(Slabs* of, size_t bytes) {
  CHECK(bytes <= chunk_bytes);
  if (Chunk* chunk = of->free) {
    of->free = chunk->next;
    return chunk;
  }
  // Each page begins with a header, so that a pointer to the page is not a pointer to a chunk.
  if (of->count == 0 || of->used + chunk_bytes > page_bytes) {
    CHECK(of->count < pages_most);
    of->pages[of->count++] = static_cast<char*>(malloc(page_bytes));
    of->used = 64;
  }
  char* chunk = of->pages[of->count - 1] + of->used;
  of->used += chunk_bytes;
  return chunk;
}

OWN void slab_put(Slabs* of, void* block) {
  auto* chunk = static_cast<Chunk*>(block);
  chunk->next = of->free;
  of->free = chunk;
}

struct Header {
  size_t bytes;
  Header* before;
};
static char *area, *area_end;
static Header* last;

// Returns 0, or -1 on failure.
OWN int area_get(size_t bytes, void** out) {
  size_t needed = sizeof(Header) + ((bytes + 15) & ~15ul);
  if (!area) {
    area = static_cast<char*>(mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    CHECK(area != MAP_FAILED);
    area_end = area + (1 << 20);
  }
  if (static_cast<size_t>(area_end - area) < needed) return -1;
  auto* header = reinterpret_cast<Header*>(area);
  area += needed;
  header->bytes = bytes;
  header->before = last;
  last = header;
  *out = header + 1;
  return 0;
}

OWN void area_put(void** place) {
  memset(*place, 0, static_cast<Header*>(*place)[-1].bytes);
  *place = nullptr;
}

struct Item {
  Item *next, *other;
  char rest[70];
};

static Item* held[200];
static Item** table;
static void* in_area[64];

APART Item* item() { return static_cast<Item*>(memset(slab_get(&items, sizeof(Item)), 0, sizeof(Item))); }
APART void release(Item* it) { slab_put(&items, it); }

APART void keep_items() {
  for (int i = 0; i < 150; i++) held[i] = item();
}
// Only a block from malloc points to these items.
APART void keep_in_table() {
  table = static_cast<Item**>(calloc(40, sizeof(Item*)));
  for (int i = 0; i < 40; i++) table[i] = item();
}
APART void keep_chain() {
  for (int i = 150; i < 160; i++) {
    held[i] = item();
    held[i]->other = item();
    held[i]->other->other = item();
  }
}
APART void lose_items() {
  for (int i = 0; i < 30; i++) keep(item());
}
APART Item* chained() { return item(); }
APART void lose_chains() {
  for (int i = 0; i < 5; i++) {
    Item* first = item();
    first->other = chained();
    first->other->other = chained();
    keep(first);
  }
}
// Released blocks still contain pointers to leaked blocks.
APART void lose_behind_released() {
  for (int i = 0; i < 4; i++) {
    Item* one = chained();
    one->other = item();
    keep(one->other);
    release(one);
  }
}
APART void lose_of_c() {
  for (int i = 0; i < 3; i++) keep(malloc(40));
}
APART void keep_in_area() {
  for (auto& place : in_area) CHECK(area_get(100, &place) == 0);
}
APART void lose_in_area() {
  for (int i = 0; i < 7; i++) {
    void* place;
    CHECK(area_get(200, &place) == 0);
    keep(place);
  }
  for (int i = 0; i < 20; i++) area_put(&in_area[i]);
  void* place = nullptr;
  CHECK(area_get(1 << 22, &place) == -1 && !place);
}
// Releases the pages without releasing the chunks in them.
APART void drop_slabs() {
  Slabs own;
  for (int i = 0; i < 300; i++) keep(memset(slab_get(&own, 90), 1, 90));
  for (size_t i = 0; i < own.count; i++) free(own.pages[i]);
}

// Clears leftovers from the stack and from registers.
APART void forget() {
  char stack[16384];
  memset(stack, 0, sizeof stack);
  keep(stack);
}

APART void work(bool loses) {
  keep_items();
  if (loses) {
    lose_items();
    lose_chains();
    lose_of_c();
  }
  keep_in_table();
  keep_in_area();
  if (loses) {
    lose_in_area();
    lose_behind_released();
  }
  drop_slabs();
  keep_chain();
  for (int i = 0; i < 100; i++) release(item());
}

int main(int count, char** arguments) {
  bool loses = count < 2;
  if (count > 2) {
    // Grows until it is killed.
    say("ready");
    for (;;) {
      Item* one = item();
      one->next = held[0];
      held[0] = one;
      release(item());
      keep(malloc(1));
      usleep(2000);
    }
  }
  if (count == 2 && strcmp(arguments[1], "waits") == 0) {
    ready();
    work(true);
    forget();
    done();
    return 0;
  }
  work(loses);
  forget();
  return 0;
}
