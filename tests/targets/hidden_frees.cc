// The same program in C++, for allocators of glibc programs.
#include "hidden_frees.c"
