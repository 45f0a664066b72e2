// For each byte of its input, opens each of its modules under its name in the loader's list, as
// in-process symbolizers do, and loads a library (argument 1) from a memory object through a
// descriptor number.
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "target.hpp"

using namespace target;

// Opening a descriptor by its number would yield one of these pipes; reading it would take data
// from another reader.
static int pipes[8][2];

static int open_by_name(dl_phdr_info* info, size_t, void*) {
  if (info->dlpi_name[0] == 0) return 0;
  int file = open(info->dlpi_name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return 0;
  struct stat status {};
  CHECK(fstat(file, &status) == 0 && S_ISREG(status.st_mode));
  close(file);
  return 0;
}

static void load_from_memory(const char* path) {
  int memory = memfd_create("plugin", 0);
  int file = open(path, O_RDONLY);
  CHECK(memory >= 0 && file >= 0);
  char bytes[4096];
  for (ssize_t length; (length = read(file, bytes, sizeof bytes)) > 0;) CHECK(write(memory, bytes, static_cast<size_t>(length)) == length);
  close(file);
  char name[64];
  snprintf(name, sizeof name, "/proc/self/fd/%d", memory);
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  CHECK(library && dlsym(library, "leak_in_library"));
  CHECK(dlclose(library) == 0);
  close(memory);
}

int main(int, char** arguments) {
  say("ready");
  for (char byte; read(0, &byte, 1) == 1;) {
    load_from_memory(arguments[1]);
    for (auto& pair : pipes) CHECK(pipe(pair) == 0);
    dl_iterate_phdr(open_by_name, nullptr);
    for (auto& pair : pipes) close(pair[0]), close(pair[1]);
    say("listed");
  }
}
