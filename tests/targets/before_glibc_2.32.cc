// Symbols that the C++ headers of this system expect in the C library, for a program that is linked against an
// older one (<sys/single_threaded.h>, glibc 2.32).
char __libc_single_threaded = 0;
