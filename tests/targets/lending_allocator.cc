// The allocator of lending_allocator.hpp, to be preloaded.
#include "lending_allocator.hpp"
