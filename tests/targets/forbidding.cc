// Forbids itself, as argument 1 says, what the hook needs: "tsc", the time-stamp counter; "tls", the rest of the
// static TLS, by loading the libraries that the other arguments name.
#include <dlfcn.h>
#include <sys/prctl.h>

#include <string>

#include "target.hpp"

using namespace target;

int main(int count, char** arguments) {
  std::string what = arguments[1];
  if (what == "tsc") CHECK(prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0) == 0);
  bool refused = false;
  for (int i = 2; i < count; i++) {
    if (!dlopen(arguments[i], RTLD_NOW)) {
      std::string why = dlerror();
      CHECK(why.find("static TLS") != std::string::npos);
      refused = true;
    }
  }
  CHECK(refused == (what == "tls"));
  keep(malloc(10));
  ready();
  keep(malloc(10));
  // What a remote call left would be found here.
  CHECK(dlerror() == nullptr);
  done();
  return 0;
}
