// Memory layouts that once broke an attacher or a search, selected by argument 1. Each works
// until the end of its input, checks itself, and can be asked whether it is usable (usable.hpp). A
// program that cannot run here says so in place of "ready".
//   profiled  a thread writes profiles of the heap constantly (gperftools' heap profiler,
//             preloaded)
//   hooked    hooks of its allocator (gperftools', preloaded) take a lock that a sleeping thread
//             holds; leaks blocks
//   faulting  a thread fills the pages that another thread touches (userfaultfd(2)), and is notified
//             about forks
//   huge      writes to huge pages, and must have as many of them at the end as at the start
//   packed    rows of 11 bytes with pointers, one of which crosses the end of the data in the
//             program's file; leaks blocks
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <atomic>
#include <string>
#include <thread>

#include "lent_lock.hpp"
#include "usable.hpp"

using namespace target;

static std::atomic<bool> stop{false};

[[noreturn]] static void is_missing(const char* what) {
  say(what);
  _exit(0);
}

// Threads hold this lock for reading while a fork must not interrupt them. A fork holds it for
// writing.
static pthread_rwlock_t calm;
struct Undisturbed {
  Undisturbed() { CHECK(pthread_rwlock_rdlock(&calm) == 0); }
  ~Undisturbed() { CHECK(pthread_rwlock_unlock(&calm) == 0); }
};

static void make_calm() {
  pthread_rwlockattr_t how;
  pthread_rwlockattr_init(&how);
  pthread_rwlockattr_setkind_np(&how, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
  CHECK(pthread_rwlock_init(&calm, &how) == 0);
  auto unlock = [] { pthread_rwlock_unlock(&calm); };
  CHECK(pthread_atfork([] { pthread_rwlock_wrlock(&calm); }, unlock, unlock) == 0);
}

static void allocate() {
  for (int i = 0; i < 200; i++) {
    auto* block = static_cast<unsigned char*>(malloc(static_cast<size_t>(i % 500 + 1)));
    block[0] = static_cast<unsigned char>(i);
    CHECK(block[0] == static_cast<unsigned char>(i));
    free(block);
  }
}

// The storm limits the growth of a program, so this leaks no more than the limit.
static void lose() {
  static int lost = 0;
  for (int i = 0; i < 4 && lost < 20'000; i++, lost++) keep(memset(malloc(100), 7, 100));
}

template <typename Function>
static Function* function(const char* name) {
  void* found = dlsym(RTLD_DEFAULT, name);
  if (!found) is_missing("missing: libtcmalloc.so.4");
  return reinterpret_cast<Function*>(found);
}

static void profiled() {
  auto dump = function<void(const char*)>("HeapProfilerDump");
  char folder[] = "/tmp/adversary-XXXXXX", prefix[64];
  CHECK(mkdtemp(folder) != nullptr);
  snprintf(prefix, sizeof prefix, "%s/profile", folder);
  // The profiler writes a line for each profile to standard error.
  stderr = fdopen(dup(2), "w");
  int nowhere = open("/dev/null", O_WRONLY);
  CHECK(stderr && nowhere >= 0 && dup2(nowhere, 2) == 2 && close(nowhere) == 0);
  function<void(const char*)>("HeapProfilerStart")(prefix);
  // The profiler also writes some profiles by itself.
  auto remove_all = [&prefix, number = 1]() mutable {
    char file[80];
    for (;; number++) {
      snprintf(file, sizeof file, "%s.%04d.heap", prefix, number);
      if (unlink(file) != 0) return number;
    }
  };
  std::thread writer([&] {
    while (!stop) {
      {
        Undisturbed here;
        dump("storm");
      }
      remove_all();
      usleep(2000);
    }
  });
  say("ready");
  while (!stop) {
    {
      Undisturbed here;
      allocate();
    }
    usleep(500);
  }
  writer.join();
  function<void()>("HeapProfilerStop")();
  CHECK(remove_all() > 1 && rmdir(folder) == 0);
}

static void hooked() {
  make_lent_lock();
  auto on_new = [](const void*, size_t) { take_lent_lock(); };
  auto on_delete = [](const void*) { take_lent_lock(); };
  CHECK(function<int(void (*)(const void*, size_t))>("MallocHook_AddNewHook")(on_new));
  CHECK(function<int(void (*)(const void*))>("MallocHook_AddDeleteHook")(on_delete));
  std::thread holder([] {
    while (!stop) {
      {
        Undisturbed here;
        pthread_mutex_lock(lent_lock());
        usleep(3000);
        pthread_mutex_unlock(lent_lock());
      }
      usleep(500);
    }
  });
  say("ready");
  while (!stop) {
    {
      Undisturbed here;
      allocate();
      lose();
    }
    usleep(500);
  }
  holder.join();
}

constexpr size_t page_bytes = 4096;

static char* map(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  return static_cast<char*>(memory);
}

// Returns the contents of the page at this address.
static char mark(uint64_t address) { return static_cast<char>(address / page_bytes % 251 + 1); }

static void fill_pages(int userfault) {
  static char page[page_bytes];
  uffd_msg message;
  while (read(userfault, &message, sizeof message) == sizeof message) {
    if (message.event == UFFD_EVENT_FORK) {
      // The child does not need these pages.
      close(static_cast<int>(message.arg.fork.ufd));
      continue;
    }
    CHECK(message.event == UFFD_EVENT_PAGEFAULT);
    uint64_t at = message.arg.pagefault.address & ~(page_bytes - 1);
    memset(page, mark(at), sizeof page);
    uffdio_copy copy{at, reinterpret_cast<uint64_t>(page), page_bytes, 0, 0};
    if (ioctl(userfault, UFFDIO_COPY, &copy) == 0) continue;
    // A fork has begun, or the page is present already. The thread then retries the access.
    CHECK(errno == EAGAIN || errno == EEXIST);
    uffdio_range range{at, page_bytes};
    ioctl(userfault, UFFDIO_WAKE, &range);
  }
}

static void faulting() {
  constexpr size_t pages = 512;
  int userfault = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC));
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = UFFD_FEATURE_EVENT_FORK;
  if (userfault < 0 || ioctl(userfault, UFFDIO_API, &api) != 0) is_missing("missing: userfaultfd(2)");
  char* area = map(pages * page_bytes);
  uffdio_register request{};
  request.range = {reinterpret_cast<uint64_t>(area), pages * page_bytes};
  request.mode = UFFDIO_REGISTER_MODE_MISSING;
  CHECK(ioctl(userfault, UFFDIO_REGISTER, &request) == 0);
  std::thread(fill_pages, userfault).detach();
  say("ready");
  for (size_t round = 0; !stop; round++) {
    char* page = area + round * 37 % pages * page_bytes;
    CHECK(page[0] == mark(reinterpret_cast<uint64_t>(page)) && page[page_bytes - 1] == page[0]);
    if (round % 3 == 0) CHECK(madvise(page, page_bytes, MADV_DONTNEED) == 0);
    if (round % 16 == 0) allocate();
    if (round % 64 == 0) usleep(500);
  }
}

constexpr size_t huge_bytes = 2 << 20, huge_pages = 16;

static long huge_kib() {
  FILE* file = fopen("/proc/self/smaps_rollup", "r");
  char line[200];
  long kib = 0;
  while (file && fgets(line, sizeof line, file)) sscanf(line, "AnonHugePages: %ld", &kib);
  if (file) fclose(file);
  return kib;
}

static void huge() {
  auto at = reinterpret_cast<uint64_t>(map((huge_pages + 1) * huge_bytes));
  auto* area = reinterpret_cast<char*>((at + huge_bytes - 1) & ~(huge_bytes - 1));
  madvise(area, huge_pages * huge_bytes, MADV_HUGEPAGE);
  memset(area, 0x5a, huge_pages * huge_bytes);
  long before = huge_kib();
  if (before < static_cast<long>(huge_pages * huge_bytes / 1024)) is_missing("missing: huge pages");
  say("ready");
  for (uint64_t round = 1; !stop; round++) {
    {
      // Pages written between a fork and the end of the child are copied as small pages.
      std::lock_guard quiet(using_everything);
      for (size_t i = 0; i < huge_pages; i++) {
        auto* word = reinterpret_cast<volatile uint64_t*>(area + i * huge_bytes + round % 512 * page_bytes);
        CHECK(*word == 0x5a5a5a5a5a5a5a5a || *word + 512 == round);
        *word = round;
      }
      allocate();
    }
    usleep(300);
  }
  CHECK(huge_kib() >= before);
  for (size_t i = 8; i < huge_pages * huge_bytes; i += page_bytes) CHECK(area[i] == 0x5a);
}

struct __attribute__((packed)) Row {
  uint16_t number;
  unsigned char* block;
  char kind;
};
static char first_of_data = 1;
static Row rows[20'000];

static void check_row(int i) {
  CHECK(rows[i].number == static_cast<uint16_t>(i) && rows[i].kind == 'k');
  for (int k = 0; k < 64; k++) CHECK(rows[i].block[k] == static_cast<unsigned char>(i * 7));
}

static void packed() {
  keep(&first_of_data);
  constexpr int count = sizeof rows / sizeof *rows;
  for (int i = 0; i < count; i++) {
    auto* block = static_cast<unsigned char*>(malloc(64));
    memset(block, i * 7, 64);
    rows[i] = {static_cast<uint16_t>(i), block, 'k'};
  }
  say("ready");
  for (int round = 0; !stop; round++) {
    for (int i = round % 10; i < count; i += 10) check_row(i);
    for (int i = 0; i < 20; i++) {
      int row = static_cast<int>(static_cast<unsigned>(round * 20 + i) * 7919u % count);
      check_row(row);
      memset(rows[row].block, 0xff, 64);
      free(rows[row].block);
      rows[row].block = static_cast<unsigned char*>(malloc(64));
      memset(rows[row].block, row * 7, 64);
    }
    lose();
    // Overwrites blocks that were released by mistake.
    unsigned char* others[100];
    for (auto& other : others) memset(other = static_cast<unsigned char*>(malloc(64)), 0xee, 64);
    for (auto& other : others) free(other);
    usleep(1000);
  }
  for (int i = 0; i < count; i++) check_row(i);
}

int main(int, char** arguments) {
  std::string what = arguments[1];
  make_calm();
  std::thread reader([] {
    serve();
    stop = true;
  });
  if (what == "profiled") profiled();
  if (what == "hooked") hooked();
  if (what == "faulting") faulting();
  if (what == "huge") huge();
  if (what == "packed") packed();
  reader.join();
}
