// The allocator of lending_allocator.hpp, for preloading.
#include "lending_allocator.hpp"
