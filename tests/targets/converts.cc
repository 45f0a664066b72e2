// Makes the C library open a library for itself (iconv_open(3)), which allocates for each conversion.
#include <iconv.h>

#include "target.hpp"

using namespace target;

int main() {
  ready();
  for (int i = 0; i < 50; i++) CHECK(iconv_open("UTF-16", "UTF-8") != reinterpret_cast<iconv_t>(-1));
  done();
}
