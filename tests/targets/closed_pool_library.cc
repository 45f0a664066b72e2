// A library with a pool; the program closes it, and with it all described functions.
#include <cstdlib>

extern "C" [[gnu::noinline, gnu::noclone]] void* pool_alloc(size_t bytes) { return malloc(bytes + 8); }
extern "C" [[gnu::noinline, gnu::noclone]] void pool_free(void* block) { free(block); }
