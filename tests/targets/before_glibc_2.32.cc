// Symbols that this system's C++ headers expect in the C library, for linking against an older C
// library (<sys/single_threaded.h>, glibc 2.32).
char __libc_single_threaded = 0;
