// Loads the library that argument 1 names, which is on an in-memory file system, and write-protects
// its GOT entries. A store to them raises SIGBUS, but the kernel can still read them
// (userfaultfd(2), UFFD_FEATURE_SIGBUS). After printing "ready", checks that the GOT entries of the
// program and of the library are unchanged, removes the protection, and prints "done".
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include <map>

#include "target.hpp"

using namespace target;

using Words = std::map<uint64_t*, uint64_t>;

// Returns the words that the loader has filled for outgoing calls of this module, and for function
// pointers.
static Words words_of(const link_map* module) {
  const Elf64_Rela* tables[2] = {};
  uint64_t bytes[2] = {};
  for (const Elf64_Dyn* entry = module->l_ld; entry->d_tag != DT_NULL; entry++) {
    if (entry->d_tag == DT_JMPREL) tables[0] = reinterpret_cast<Elf64_Rela*>(entry->d_un.d_ptr);
    if (entry->d_tag == DT_PLTRELSZ) bytes[0] = entry->d_un.d_val;
    if (entry->d_tag == DT_RELA) tables[1] = reinterpret_cast<Elf64_Rela*>(entry->d_un.d_ptr);
    if (entry->d_tag == DT_RELASZ) bytes[1] = entry->d_un.d_val;
  }
  Words words;
  for (int table = 0; table < 2; table++) {
    for (uint64_t i = 0; tables[table] && i < bytes[table] / sizeof(Elf64_Rela); i++) {
      const Elf64_Rela& relocation = tables[table][i];
      uint64_t type = ELF64_R_TYPE(relocation.r_info);
      if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT) continue;
      auto* word = reinterpret_cast<uint64_t*>(module->l_addr + relocation.r_offset);
      words[word] = *word;
    }
  }
  return words;
}

static const link_map* module_of(void* handle) {
  link_map* module = nullptr;
  CHECK(dlinfo(handle, RTLD_DI_LINKMAP, &module) == 0);
  return module;
}

int main(int, char** arguments) {
  void* library = dlopen(arguments[1], RTLD_NOW);
  CHECK(library);
  Words guarded = words_of(module_of(library)), own = words_of(module_of(dlopen(nullptr, RTLD_NOW)));
  CHECK(!guarded.empty() && !own.empty());
  // The tracer patches slots in the order of their addresses.
  CHECK(own.rbegin()->first < guarded.begin()->first);

  int faults = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC));
  CHECK(faults >= 0);
  uffdio_api api = {};
  api.api = UFFD_API;
  api.features = UFFD_FEATURE_SIGBUS | UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM;
  CHECK(ioctl(faults, UFFDIO_API, &api) == 0);
  for (auto [word, value] : guarded) {
    uffdio_range page = {reinterpret_cast<uint64_t>(word) & ~4095ull, 4096};
    uffdio_register watch = {};
    watch.range = page;
    watch.mode = UFFDIO_REGISTER_MODE_WP;
    CHECK(ioctl(faults, UFFDIO_REGISTER, &watch) == 0);
    uffdio_writeprotect guard = {page, UFFDIO_WRITEPROTECT_MODE_WP};
    CHECK(ioctl(faults, UFFDIO_WRITEPROTECT, &guard) == 0);
  }
  ready();
  for (auto [word, value] : own) CHECK(*word == value);
  for (auto [word, value] : guarded) CHECK(*word == value);
  CHECK(close(faults) == 0);
  done();
  // The final attach must also have restored the slots.
  for (auto [word, value] : own) CHECK(*word == value);
  for (auto [word, value] : guarded) CHECK(*word == value);
  return 0;
}
