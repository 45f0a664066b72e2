// Compiles hidden_frees.c as C++, for allocators of glibc programs.
#include "hidden_frees.c"
