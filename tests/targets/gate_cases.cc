// Leaks and situations that look like leaks, with one case per run, based on the tests of
// LeakSanitizer and memcheck. Argument 1 names the case; argument 2 is a library, if the case needs
// one.
#include <dlfcn.h>
#include <malloc.h>
#include <csignal>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#define NOINLINE [[gnu::noinline]]

static void keep(void* block) { asm volatile("" : : "r"(block) : "memory"); }

// Overwrites the stack below and the registers, which still contain planted pointers.
NOINLINE static void wipe() {
  char frame[8192];
  memset(frame, 0, sizeof frame);
  keep(frame);
  asm volatile("xor %%eax, %%eax; xor %%ecx, %%ecx; xor %%edx, %%edx; xor %%esi, %%esi; xor %%edi, %%edi;"
               "xor %%r8d, %%r8d; xor %%r9d, %%r9d; xor %%r10d, %%r10d; xor %%r11d, %%r11d;"
               "pxor %%xmm0, %%xmm0; pxor %%xmm1, %%xmm1; pxor %%xmm2, %%xmm2; pxor %%xmm3, %%xmm3"
               ::: "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "xmm0", "xmm1", "xmm2", "xmm3");
}

NOINLINE static void* block(size_t bytes) {
  void* made = malloc(bytes);
  memset(made, 0, bytes);
  return made;
}

// Fills the part of the stack that later calls use with an address.
NOINLINE static void spread(void* block) {
  void* volatile frame[1024];
  for (auto& word : frame) word = block;
}

NOINLINE static void leak(size_t bytes) { keep(block(bytes)); }

struct Node {
  Node* next;
  char rest[40];
};

static void* volatile global;
static void* volatile hidden;
static thread_local void* volatile local;
static std::atomic<int> at_rest;
static pthread_key_t keys[64];

static void run_thread(void (*body)()) {
  std::thread([=] { body(); }).detach();
  while (at_rest == 0) usleep(1000);
}

[[noreturn]] static void rest() {
  at_rest++;
  for (;;) pause();
}

NOINLINE static void* opened(const char* library, bool in_tls) {
  void* handle = dlopen(library, RTLD_NOW);
  auto set = handle ? reinterpret_cast<void (*)(void*)>(dlsym(handle, in_tls ? "set_tls" : "set_global"))
                    : nullptr;
  if (!set) _exit(9);
  set(block(700));
  return handle;
}

struct AtEnd {
  ~AtEnd() {
    if (hidden == this) leak(123);
    wipe();
  }
} at_end;

NOINLINE static void plant(const std::string& name, char** arguments) {
  if (name == "nothing") {
    free(block(10));
  } else if (name == "plain") {
    for (int i = 0; i < 10; i++) leak(96);
  } else if (name == "thousands") {
    // The blocks are allocated among the same number of blocks that are then freed, from every list
    // of the allocator.
    auto** freed = static_cast<void**>(block(7000 * sizeof(void*)));
    for (int i = 0; i < 7000; i++) {
      freed[i] = block(16 + i % 250 * 16);
      leak(24 + i % 130 * 8);
    }
    for (int i = 0; i < 7000; i++) free(freed[i]);
    free(freed);
  } else if (name == "zero") {
    keep(malloc(0));
  } else if (name == "global") {
    global = block(100);
  } else if (name == "interior") {
    global = static_cast<char*>(block(100)) + 50;
  } else if (name == "vector_end") {
    global = static_cast<char*>(block(96)) + 96;
  } else if (name == "thread_local") {
    local = block(100);
  } else if (name == "thread_local_of_another") {
    run_thread([] { local = block(100), rest(); });
  } else if (name == "thread_local_of_an_ended") {
    std::thread([] { local = block(100); }).join();
  } else if (name == "specific") {
    for (auto& key : keys) pthread_key_create(&key, nullptr);
    pthread_setspecific(keys[1], block(100));
    pthread_setspecific(keys[50], block(200));
  } else if (name == "specific_of_another") {
    for (auto& key : keys) pthread_key_create(&key, nullptr);
    run_thread([] {
      pthread_setspecific(keys[1], block(100));
      pthread_setspecific(keys[50], block(200));
      wipe();
      rest();
    });
  } else if (name == "thread_stack") {
    run_thread([] {
      void* volatile held = block(100);
      keep(const_cast<void**>(&held));
      wipe();
      rest();
    });
  } else if (name == "register") {
    run_thread([] {
      void* held = block(100);
      at_rest++;
      // The address is only in r12, during a call that never returns.
      asm volatile("mov %0, %%r12; xor %%eax, %%eax; xor %%ebx, %%ebx; xor %%ebp, %%ebp; xor %%r13d, %%r13d;"
                   "1: mov $34, %%eax; syscall; jmp 1b"
                   : : "r"(held) : "r12", "rax", "rcx", "r11", "rbx", "r13", "memory");
    });
  } else if (name == "ended_thread") {
    std::thread([] { leak(300); }).join();
  } else if (name == "list") {
    // A leaked list: its head is a direct leak, and the other nodes are indirect leaks.
    Node* head = nullptr;
    for (int i = 0; i < 5; i++) {
      auto* node = static_cast<Node*>(block(sizeof(Node)));
      node->next = head;
      head = node;
    }
    keep(head);
  } else if (name == "realloc_list") {
    auto** table = static_cast<void**>(block(2 * sizeof(void*)));
    for (int i = 0; i < 64; i++) {
      table = static_cast<void**>(realloc(table, (i + 1) * sizeof(void*)));
      table[i] = realloc(block(10), 20);
    }
    keep(table);
  } else if (name == "cycle") {
    auto* a = static_cast<Node*>(block(sizeof(Node)));
    auto* b = static_cast<Node*>(block(sizeof(Node)));
    a->next = b;
    b->next = a;
    keep(a);
  } else if (name == "self") {
    auto* a = static_cast<Node*>(block(sizeof(Node)));
    a->next = a;
    keep(a);
  } else if (name == "containers") {
    static std::map<std::string, std::vector<std::unique_ptr<Node>>> map;
    static std::list<std::shared_ptr<std::string>> list;
    for (int i = 0; i < 50; i++) {
      std::string key(100, static_cast<char>('a' + i % 26));
      map[key].push_back(std::make_unique<Node>());
      list.push_back(std::make_shared<std::string>(key));
    }
    // The object is never destroyed, because the program ends by quick_exit.
    quick_exit(0);
  } else if (name == "shared_cycle") {
    struct Peer {
      std::shared_ptr<Peer> other;
    };
    auto a = std::make_shared<Peer>(), b = std::make_shared<Peer>();
    a->other = b;
    b->other = a;
  } else if (name == "array_of_objects") {
    struct Named {
      std::string name = std::string(50, 'x');
    };
    global = new Named[3];
  } else if (name == "leaked_array_of_objects") {
    struct Named {
      std::string name = std::string(50, 'x');
    };
    keep(new Named[3]);
  } else if (name == "module_global") {
    opened(arguments[2], false);
  } else if (name == "closed_module") {
    dlclose(opened(arguments[2], false));
  } else if (name == "module_tls") {
    opened(arguments[2], true);
  } else if (name == "huge") {
    keep(malloc(64 << 20));
    global = malloc(64 << 20);
  } else if (name == "in_huge") {
    auto** huge = static_cast<void**>(malloc(64 << 20));
    huge[4 << 20] = block(50);
    global = huge;
  } else if (name == "memalign") {
    keep(memalign(4096, 100));
    keep(aligned_alloc(64, 192));
    keep(new (std::align_val_t(256)) char[300]);
    void* made;
    if (posix_memalign(&made, 1024, 500) != 0) _exit(9);
    global = made;
  } else if (name == "in_freed") {
    auto** freed = static_cast<void**>(block(400));
    freed[20] = block(70);
    free(freed);
  } else if (name == "hidden") {
    hidden = reinterpret_cast<void*>(~reinterpret_cast<uintptr_t>(block(80)));
  } else if (name == "overwritten") {
    global = block(60);
    global = block(61);
  } else if (name == "static_destructor") {
    hidden = &at_end;
  } else if (name == "exit_handler") {
    atexit([] { leak(55); wipe(); });
  } else if (name == "mapped") {
    void* map = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *static_cast<void**>(map) = block(90);
  } else if (name == "resized_mappings") {
    // glibc 2.43 counts 16 bytes too many for each resized mapping.
    for (int i = 0; i < 20; i++) leak(1 << 20);
    void* first = malloc(2 << 20);
    global = realloc(first, 3 << 20);
    void* second = malloc(2 << 20);
    free(realloc(second, 5 << 20));
  } else if (name == "environment") {
    char* text = strdup("GATE_CASE=1");
    putenv(text);
    setenv("GATE_OTHER", "a value of some length", 1);
  } else if (name == "stdio") {
    FILE* file = fopen("/dev/null", "w");
    setvbuf(file, nullptr, _IOFBF, 4096);
    fprintf(file, "text");
  } else if (name == "ends") {
    // Argument 2 selects the way in which the program exits.
    for (int i = 0; i < 10; i++) leak(96);
    run_thread([] { rest(); });
    wipe();
    std::string end = arguments[2];
    if (end == "exit") exit(0);
    if (end == "exit 3") exit(3);
    if (end == "_exit") _exit(0);
    if (end == "quick_exit") quick_exit(0);
    if (end == "abort") abort();
    if (end == "SIGSEGV") raise(SIGSEGV);
    if (end == "SIGKILL") raise(SIGKILL);
    if (end == "SIGTERM") kill(getpid(), SIGTERM), pause();
    if (end == "pthread_exit") pthread_exit(nullptr);
    _exit(8);
  } else if (name == "hammer") {
    // Generates more events between two passes than a small ring holds.
    for (int i = 0; i < 1500000; i++) {
      void *first = block(16), *second = block(16);
      free(first);  // not the last allocation: no pair
      free(second);
    }
  } else if (name == "left_at_exit") {
    // The address is only in dead locations: registers that a call need not preserve, and the stack
    // below the stack pointer.
    asm volatile("mov %%rax, %%rdx; mov %%rax, %%rsi; mov %%rax, %%r8; mov %%rax, %%r9; mov %%rax, %%r10;"
                 "mov %%rax, -16(%%rsp); mov %%rax, -72(%%rsp); xor %%edi, %%edi; mov $231, %%eax; syscall"
                 : : "a"(block(66)) : "rdx", "rsi", "rdi", "r8", "r9", "r10", "rcx", "r11", "memory");
  } else if (name == "left_in_frames") {
    // The address is in parts of exit's frames that exit never writes.
    spread(block(88));
    exit(0);
  } else if (name == "child") {
    if (fork() == 0) {
      leak(77);
      wipe();
      exit(0);
    }
    wait(nullptr);
  } else {
    _exit(8);
  }
}

int main(int, char** arguments) {
  plant(arguments[1], arguments);
  wipe();
  return 0;
}
