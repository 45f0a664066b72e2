// One of many libraries, each with its own slots.
#include <cstdlib>
#include <cstring>
#include <string>

extern "C" char* library_copy(const char* text) { return strdup(text); }
extern "C" void* library_grow(void* block, size_t size) { return realloc(block, size); }
extern "C" std::string* library_string(const char* text) { return new std::string(text); }
extern "C" void library_release(void* block) { free(block); }
extern "C" void* library_zeroed(size_t count) { return calloc(count, 8); }
