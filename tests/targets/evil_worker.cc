// A server that forks workers. They drop their privileges and then write to everything that they
// share with the server. Each line of input is a command:
//
//   fork WHAT    a worker by fork(2) overwrites every word that it finds in our regions; prints
//                "found N", the number of regions that it could write
//   call WHAT    a worker does the same after an allocation
//   clone WHAT   a worker that was forked by the system call, without a hooked function, does it
//                after an allocation
//   haunt HOW WHAT   a worker created by HOW drops its privileges, tries to write memory that is
//                    mapped read-only, and then overwrites everything that it can for as long as it
//                    lives; prints "haunts N M", the numbers of regions and of guides that it can
//                    write, through their mappings or descriptors. HOW is `fork`, `_Fork`, `clone`
//                    (the system call), or `vfork`, whose worker executes this program again
//   banish       stops this worker
//   child        a well-behaved worker by fork(2): allocates, opens a library, and ends; prints
//                "well"
//   work         the server allocates in three threads while it opens and closes a library;
//                prints "worked"
//   end          ends the server, which prints "done"
//
// WHAT is `function`: the address of a function that creates a file; `aimed`: this address, but
// only in place of code addresses; `zeros`; `ones`; `random`. The worker does not change the word
// that offers a region to children. Arguments: path of liblate.so, path of the file; and `filtered`
// for a filter that kills for process_vm_readv(2), or `endless` for a server that works until the
// end of its input while such workers run one after another, and answers as described in
// usable.hpp.
#include <dlfcn.h>
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <atomic>
#include <string>
#include <thread>

#include "abi.hpp"
#include "usable.hpp"

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
    // The C library's function would wait for threads of the parent, because it is not aware of the
    // separate process (nptl/nptl_setxid.c).
    CHECK(syscall(SYS_setgroups, 0, nullptr) == 0 && syscall(SYS_setgid, 65534) == 0 && syscall(SYS_setuid, 65534) == 0);
    CHECK(syscall(SYS_setuid, 0) != 0);
  }
  CHECK(prctl(PR_SET_DUMPABLE, 1) == 0);
}

static char maps[1 << 20];
static unsigned char resident[1 << 20];

static uint64_t word_for(const char* what, uint64_t& random) {
  random ^= random << 13;
  random ^= random >> 7;
  random ^= random << 17;
  if (strcmp(what, "function") == 0 || strcmp(what, "aimed") == 0) return reinterpret_cast<uint64_t>(&leave_marker);
  if (strcmp(what, "zeros") == 0) return 0;
  if (strcmp(what, "ones") == 0) return ~0ull;
  return random;
}

struct Range {
  uint64_t start, end;
};
static Range code[1000];
static int code_count;

static bool is_code(uint64_t word) {
  for (int i = 0; i < code_count; i++)
    if (word >= code[i].start && word < code[i].end) return true;
  return false;
}

static void overwrite(char* start, size_t bytes, const char* what) {
  if (mprotect(start, bytes, PROT_READ | PROT_WRITE) != 0) return;
  CHECK(bytes / 4096 <= sizeof resident && mincore(start, bytes, resident) == 0);
  auto* birth = reinterpret_cast<std::atomic<uint32_t>*>(start + __builtin_offsetof(memhook::abi::Tally, birth));
  uint64_t random = 0x9e3779b97f4a7c15;
  for (size_t page = 0; page < bytes / 4096; page++) {
    if (!(resident[page] & 1)) continue;
    auto* words = reinterpret_cast<volatile uint64_t*>(start + page * 4096);
    for (int i = 0; i < 512; i++) {
      uint64_t word = word_for(what, random);
      if (reinterpret_cast<uint64_t>(birth) / 8 == reinterpret_cast<uint64_t>(&words[i]) / 8) continue;
      if (strcmp(what, "aimed") == 0 && !is_code(words[i])) continue;
      words[i] = word;
    }
  }
}

struct Found {
  int regions, guides;
};

// Returns true if the object behind a path is writable.
static bool can_write(const char* path) {
  int file = open(path, O_RDWR);
  if (file < 0) return false;
  void* map = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  bool can = map != MAP_FAILED || write(file, "", 1) == 1;
  close(file);
  return can;
}

static int guides_by_descriptor() {
  static char entries[1 << 16];
  int directory = open("/proc/self/fd", O_RDONLY | O_DIRECTORY), found = 0;
  CHECK(directory >= 0);
  for (long got; (got = syscall(SYS_getdents64, directory, entries, sizeof entries)) > 0;)
    for (long at = 0; at < got;) {
      auto* entry = reinterpret_cast<struct dirent64*>(entries + at);
      at += entry->d_reclen;
      char path[300], to[300];
      snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
      ssize_t length = readlink(path, to, sizeof to - 1);
      if (length < 0) continue;
      to[length] = 0;
      if (strstr(to, "memhook-guide")) found += can_write(path);
    }
  close(directory);
  return found;
}

// Makes no allocation, and therefore calls no hooked function.
static Found be_evil_once(const char* what) {
  int file = open("/proc/self/maps", O_RDONLY);
  CHECK(file >= 0);
  size_t length = 0;
  for (ssize_t got; (got = read(file, maps + length, sizeof maps - 1 - length)) > 0;) length += static_cast<size_t>(got);
  close(file);
  maps[length] = 0;
  code_count = 0;
  for (char* line = maps; line && code_count < 1000; line = strchr(line, '\n'), line += line != nullptr) {
    char* rest;
    Range range{strtoull(line, &rest, 16), 0};
    if (*rest != '-') break;
    range.end = strtoull(rest + 1, &rest, 16);
    if (rest[3] == 'x') code[code_count++] = range;
  }
  Found found{0, guides_by_descriptor()};
  for (char* line = maps; *line;) {
    char* end = strchr(line, '\n');
    CHECK(end != nullptr);
    *end = 0;
    char* rest;
    auto* start = reinterpret_cast<char*>(strtoull(line, &rest, 16));
    auto* past = reinterpret_cast<char*>(strtoull(rest + 1, &rest, 16));
    auto bytes = static_cast<size_t>(past - start);
    if (strstr(line, "memhook-region")) {
      overwrite(start, bytes, what);
      found.regions++;
    } else if (strstr(line, "memhook-guide")) {
      char path[100];
      snprintf(path, sizeof path, "/proc/self/map_files/%lx-%lx", reinterpret_cast<long>(start),
               reinterpret_cast<long>(past));
      auto copy = mremap(start, 0, bytes, MREMAP_MAYMOVE);
      found.guides += mprotect(start, bytes, PROT_READ | PROT_WRITE) == 0 || can_write(path) ||
                      (copy != MAP_FAILED && mprotect(copy, bytes, PROT_READ | PROT_WRITE) == 0);
    }
    line = end + 1;
  }
  return found;
}

static int be_evil(const char* what) {
  give_up_rights();
  return be_evil_once(what).regions;
}

[[noreturn]] static void haunt(const char* what, int out) {
  give_up_rights();
  // The kernel clears this setting when the user id changes (prctl(2)). If the parent died before
  // the call, nothing kills the child.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() == 1) _exit(0);
  Found found = be_evil_once(what);
  CHECK(write(out, &found, sizeof found) == sizeof found);
  for (;;) be_evil_once(what);
}

extern "C" pid_t _Fork();

struct Haunting {
  pid_t pid;
  Found found;
};

static Haunting start_haunting(const char* program, const std::string& how, const char* what) {
  int ends[2];
  CHECK(pipe(ends) == 0);
  char out[16];
  snprintf(out, sizeof out, "%d", ends[1]);
  pid_t pid;
  if (how == "vfork") {
    pid = vfork();
    if (pid == 0) {
      execl("/proc/self/exe", program, "haunt", what, out, nullptr);
      _exit(1);
    }
  } else {
    pid = how == "fork"    ? fork()
          : how == "_Fork" ? _Fork()
                           : static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    if (pid == 0) haunt(what, ends[1]);
  }
  CHECK(pid > 0);
  Found found;
  CHECK(read(ends[0], &found, sizeof found) == sizeof found);
  close(ends[0]);
  close(ends[1]);
  return {pid, found};
}

static void banish(pid_t evil) { CHECK(kill(evil, SIGKILL) == 0 && waitpid(evil, nullptr, 0) == evil); }

// Simulates a service with a strict allow list of system calls.
static void kill_for_reading() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{sizeof code / sizeof *code, code};
  CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
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

// Runs one worker after another, with all combinations of arguments, until the end of the input.
// Answers questions of usable.hpp.
static void work_while_haunted(const char* program) {
  static std::atomic<bool> stop{false};
  std::thread reader([] {
    serve();
    stop = true;
  });
  say("ready");
  const char *ways[] = {"clone", "fork", "_Fork", "vfork"}, *words[] = {"aimed", "function", "zeros", "ones", "random"};
  for (int round = 0; !stop; round++) {
    pid_t evil;
    {
      // A worker must not inherit a lock that another thread holds.
      std::lock_guard quiet(using_everything);
      evil = start_haunting(program, ways[round % 4], words[round % 5]).pid;
    }
    for (int i = 0; i < 5; i++) {
      use_library();
      for (int k = 0; k < 100; k++) allocate(k % 30, static_cast<unsigned char>(k));
    }
    banish(evil);
    usleep(5000);
  }
  reader.join();
}

int main(int count, char** arguments) {
  if (count == 4 && strcmp(arguments[1], "haunt") == 0) haunt(arguments[2], atoi(arguments[3]));
  if (count == 4 && strcmp(arguments[3], "filtered") == 0) kill_for_reading();
  pid_t evil = 0;
  library_path = arguments[1];
  marker_path = arguments[2];
  if (count == 4 && strcmp(arguments[3], "endless") == 0) {
    work_while_haunted(arguments[0]);
    CHECK(access(marker_path, F_OK) != 0);
    return 0;
  }
  say("ready");
  char line[64];
  while (fgets(line, sizeof line, stdin)) {
    char command[16] = "", what[16] = "", words[16] = "";
    CHECK(sscanf(line, "%15s %15s %15s", command, what, words) >= 1);
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
    } else if (name == "haunt") {
      auto [pid, found] = start_haunting(arguments[0], what, words);
      evil = pid;
      snprintf(line, sizeof line, "haunts %d %d", found.regions, found.guides);
      say(line);
    } else if (name == "banish") {
      banish(evil);
      say("banished");
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
