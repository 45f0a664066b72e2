// A pool that a program closes, with all that is described of it.
#include <cstdlib>

extern "C" [[gnu::noinline, gnu::noclone]] void* pool_alloc(size_t bytes) { return malloc(bytes + 8); }
extern "C" [[gnu::noinline, gnu::noclone]] void pool_free(void* block) { free(block); }
