// Compiles planted_heap.c as C++, for allocators of glibc programs.
#include "planted_heap.c"
