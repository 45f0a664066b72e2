// The same program in C++, for allocators of glibc programs.
#include "planted_heap.c"
