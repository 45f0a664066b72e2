// Forbids itself a facility that the hook needs, selected by argument 1: "tsc", the time-stamp
// counter; "tls", the rest of the static TLS, by loading the libraries in the other arguments;
// "descriptors", any further descriptor; "files", all files that are not open (Landlock); "code",
// new executable memory (PR_SET_MDWE). Prints "unable" if the kernel does not support this.
// "personality" also makes all readable memory executable (READ_IMPLIES_EXEC).
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <string>

#include "target.hpp"

using namespace target;

static void take_all_descriptors() {
  rlimit limit{64, 64};
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  while (open("/dev/null", O_RDONLY) >= 0) {
  }
  CHECK(errno == EMFILE);
}

static bool forbid_files() {
  landlock_ruleset_attr rules{};
  rules.handled_access_fs = LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE;
  auto file = static_cast<int>(syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0));
  if (file < 0) return false;
  CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  CHECK(syscall(SYS_landlock_restrict_self, file, 0) == 0 && close(file) == 0);
  CHECK(open("/dev/null", O_RDONLY) < 0 && errno == EACCES);
  return true;
}

static bool forbid_code() {
  constexpr int set_mdwe = 65, refuse_exec_gain = 1;
  return prctl(set_mdwe, refuse_exec_gain, 0, 0, 0) == 0;
}

int main(int count, char** arguments) {
  std::string what = arguments[1];
  if (what == "tsc") CHECK(prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0) == 0);
  if (what == "personality") CHECK(personality(READ_IMPLIES_EXEC) >= 0);
  if (what == "descriptors") take_all_descriptors();
  if ((what == "files" && !forbid_files()) || (what == "code" && !forbid_code())) {
    say("unable");
    return 0;
  }
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
  // Leftovers of a remote call would show here.
  CHECK(dlerror() == nullptr);
  done();
  return 0;
}
