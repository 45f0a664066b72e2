// Checks whether a process can still use functions that need the locks of its C library. This
// detects an abandoned lock immediately. `serve` answers such questions until the input ends.
#pragma once
#include <dlfcn.h>
#include <iconv.h>
#include <pthread.h>
#include <pwd.h>
#include <sys/wait.h>

#include <mutex>

#include "target.hpp"

namespace target {

inline void* nothing(void* argument) {
  keep(malloc(30));
  return argument;
}

// Held while use_everything() runs; code that would disturb it also takes this lock.
inline std::mutex using_everything;

// Opens a library, looks up a user, opens a character conversion, and creates a thread and a child.
inline void use_everything() {
  std::lock_guard quiet(using_everything);
  // Every glibc has libutil, which few programs load.
  void* library = dlopen("libutil.so.1", RTLD_NOW | RTLD_LOCAL);
  CHECK(library && dlclose(library) == 0);
  char buffer[4096];
  passwd user, *found = nullptr;
  CHECK(getpwnam_r("root", &user, buffer, sizeof buffer, &found) == 0);
  iconv_t conversion = iconv_open("UTF-16", "ISO-8859-15");
  CHECK(conversion != reinterpret_cast<iconv_t>(-1) && iconv_close(conversion) == 0);
  pthread_t thread;
  CHECK(pthread_create(&thread, nullptr, nothing, nullptr) == 0 && pthread_join(thread, nullptr) == 0);
  pid_t child = fork();
  if (child == 0) {
    free(malloc(1000));
    _exit(0);
  }
  int status = 1;
  while (waitpid(child, &status, 0) < 0) CHECK(errno == EINTR);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// Answers each 'u' of the input with "usable" after a successful check. Returns at any other byte
// or at the end.
inline void serve() {
  for (;;) {
    char byte = 0;
    ssize_t got = read(0, &byte, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || byte != 'u') return;
    use_everything();
    say("usable");
  }
}

}  // namespace target
