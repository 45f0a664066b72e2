// Opens the libraries in its arguments before an attach.
#include <dlfcn.h>

#include "target.hpp"

using namespace target;

int main(int count, char** arguments) {
  for (int i = 1; i < count; i++) CHECK(dlopen(arguments[i], RTLD_NOW) != nullptr);
  ready();
  for (int i = 0; i < 10; i++) keep(malloc(123));
  done();
}
