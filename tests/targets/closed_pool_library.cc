// A library with a pool that a program closes, together with all functions that are described to
// the tracer.
#include <cstdlib>

extern "C" [[gnu::noinline, gnu::noclone]] void* pool_alloc(size_t bytes) { return malloc(bytes + 8); }
extern "C" [[gnu::noinline, gnu::noclone]] void pool_free(void* block) { free(block); }
