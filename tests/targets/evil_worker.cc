// A server that forks workers which give up their rights and then write into whatever they share with it. Each line of
// input is a command:
//
//   fork WHAT    a worker by fork(2) overwrites every word that it finds in regions of ours; says "found N", the number
//                of regions that it could write
//   call WHAT    the same after an allocation
//   clone WHAT   the same after an allocation, forked by the system call, without a hooked function
//   child        a worker by fork(2) that means well: allocates, opens a library, and ends; says "well"
//   work         the server allocates in three threads, and opens and closes a library all the while; says "worked"
//   end          ends the server, which says "done"
//
// WHAT is `function`: the address of a function that makes a file; `zeros`; `ones`; `random`. The word that offers a
// region to children is left as it is.
// Arguments: path of liblate.so, path of the file.
#include <dlfcn.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <atomic>
#include <string>
#include <thread>

#include "abi.hpp"
#include "target.hpp"

using namespace target;

static const char* library_path;
static const char* marker_path;

extern "C" [[gnu::noinline, gnu::used]] int leave_marker() {
  int file = static_cast<int>(syscall(SYS_open, marker_path, O_CREAT | O_WRONLY, 0644));
  syscall(SYS_close, file);
  return 0;
}

static void give_up_rights() {
  if (geteuid() == 0) {
    CHECK(setgroups(0, nullptr) == 0 && setgid(65534) == 0 && setuid(65534) == 0);
    CHECK(setuid(0) != 0);
  }
  CHECK(prctl(PR_SET_DUMPABLE, 1) == 0);
}

static char maps[1 << 20];
static unsigned char resident[1 << 20];

static uint64_t word_for(const char* what, uint64_t& random) {
  random ^= random << 13;
  random ^= random >> 7;
  random ^= random << 17;
  if (strcmp(what, "function") == 0) return reinterpret_cast<uint64_t>(&leave_marker);
  if (strcmp(what, "zeros") == 0) return 0;
  if (strcmp(what, "ones") == 0) return ~0ull;
  return random;
}

static void overwrite(char* start, size_t bytes, const char* what) {
  if (mprotect(start, bytes, PROT_READ | PROT_WRITE) != 0) return;
  CHECK(bytes / 4096 <= sizeof resident && mincore(start, bytes, resident) == 0);
  auto* birth = reinterpret_cast<std::atomic<uint32_t>*>(start + __builtin_offsetof(memhook::abi::Control, birth));
  uint64_t random = 0x9e3779b97f4a7c15;
  for (size_t page = 0; page < bytes / 4096; page++) {
    if (!(resident[page] & 1)) continue;
    auto* words = reinterpret_cast<volatile uint64_t*>(start + page * 4096);
    for (int i = 0; i < 512; i++) {
      uint64_t word = word_for(what, random);
      if (reinterpret_cast<uint64_t>(birth) / 8 == reinterpret_cast<uint64_t>(&words[i]) / 8) continue;
      words[i] = word;
    }
  }
}

// Without an allocation, so without a hooked function.
static int be_evil(const char* what) {
  give_up_rights();
  int file = open("/proc/self/maps", O_RDONLY);
  CHECK(file >= 0);
  size_t length = 0;
  for (ssize_t got; (got = read(file, maps + length, sizeof maps - 1 - length)) > 0;) length += static_cast<size_t>(got);
  close(file);
  maps[length] = 0;
  int found = 0;
  for (char* line = maps; *line;) {
    char* end = strchr(line, '\n');
    CHECK(end != nullptr);
    *end = 0;
    if (strstr(line, "memhook-region")) {
      char* rest;
      auto* start = reinterpret_cast<char*>(strtoull(line, &rest, 16));
      auto* past = reinterpret_cast<char*>(strtoull(rest + 1, &rest, 16));
      overwrite(start, static_cast<size_t>(past - start), what);
      found++;
    }
    line = end + 1;
  }
  return found;
}

static void tell_found(pid_t pid) {
  CHECK(pid > 0);
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid);
  CHECK(WIFEXITED(status));
  char line[32];
  snprintf(line, sizeof line, "found %d", WEXITSTATUS(status));
  say(line);
}

static void use_library() {
  void* library = dlopen(library_path, RTLD_NOW);
  CHECK(library != nullptr);
  auto leak = reinterpret_cast<void* (*)(size_t)>(dlsym(library, "leak_in_library"));
  CHECK(leak != nullptr);
  free(leak(100));
  CHECK(dlclose(library) == 0);
}

[[gnu::noinline]] static void allocate(int depth, unsigned char mark) {
  auto* block = static_cast<unsigned char*>(malloc(100 + depth));
  CHECK(block != nullptr);
  memset(block, mark, 100);
  if (depth > 0) allocate(depth - 1, mark);
  for (int i = 0; i < 100; i++) CHECK(block[i] == mark);
  free(block);
}

static void work() {
  std::thread threads[3];
  for (auto& thread : threads)
    thread = std::thread([] {
      for (int i = 0; i < 3000; i++) allocate(i % 30, static_cast<unsigned char>(i));
    });
  for (int i = 0; i < 10; i++) use_library();
  for (auto& thread : threads) thread.join();
}

int main(int, char** arguments) {
  library_path = arguments[1];
  marker_path = arguments[2];
  say("ready");
  char line[64];
  while (fgets(line, sizeof line, stdin)) {
    char command[16] = "", what[16] = "";
    CHECK(sscanf(line, "%15s %15s", command, what) >= 1);
    std::string name = command;
    if (name == "fork") {
      pid_t pid = fork();
      if (pid == 0) _exit(be_evil(what));
      tell_found(pid);
    } else if (name == "clone" || name == "call") {
      auto pid = name == "call" ? fork() : static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
      if (pid == 0) {
        void* block = malloc(10);
        keep(block);
        free(block);
        _exit(be_evil(what));
      }
      tell_found(pid);
    } else if (name == "child") {
      pid_t pid = fork();
      if (pid == 0) {
        for (int i = 0; i < 100; i++) allocate(i % 30, 1);
        use_library();
        _exit(0);
      }
      int status = 0;
      CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
      say("well");
    } else if (name == "work") {
      work();
      CHECK(access(marker_path, F_OK) != 0);
      say("worked");
    } else if (name == "end") {
      break;
    }
  }
  CHECK(access(marker_path, F_OK) != 0);
  say("done");
  return 0;
}
