// A PHP extension with a function that allocates 3,000 blocks, as a page of a shop does, and leaks
// the number given as its argument. KAL's authors planted this leak into Apache's PHP.
#include <php.h>

#include <cstdlib>

constexpr int calls = 3000;
constexpr size_t most = 8192;

ZEND_BEGIN_ARG_INFO_EX(work_arguments, 0, 0, 1)
ZEND_ARG_INFO(0, lost)
ZEND_END_ARG_INFO()

PHP_FUNCTION(leaky_work) {
  zend_long lost = 0;
  if (zend_parse_parameters(ZEND_NUM_ARGS(), "l", &lost) == FAILURE) return;
  static unsigned seed = 1;
  for (int i = 0; i < calls; i++) {
    seed = seed * 1664525 + 1013904223;
    auto* block = static_cast<volatile char*>(malloc(1 + (seed >> 8) % most));
    block[0] = static_cast<char>(i);
    if (i >= lost) free(const_cast<char*>(block));
  }
  RETURN_LONG(calls);
}

static const zend_function_entry functions[] = {PHP_FE(leaky_work, work_arguments) PHP_FE_END};

static zend_module_entry leaky_module = {
    STANDARD_MODULE_HEADER, "leaky", functions, nullptr, nullptr, nullptr, nullptr, nullptr, "1", STANDARD_MODULE_PROPERTIES};

extern "C" ZEND_DLEXPORT zend_module_entry* get_module() { return &leaky_module; }
