// A program whose slots can never become writable again (mseal(2)), as with a loader that seals
// relocated memory. Exits with 77 if the kernel does not have this call.
#include <link.h>
#include <sys/syscall.h>

#include "usable.hpp"

using namespace target;

#ifndef SYS_mseal
#define SYS_mseal 462
#endif

static int seal(dl_phdr_info* info, size_t, void* sealed) {
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    if (part.p_type != PT_GNU_RELRO) continue;
    // ld.so protects whole pages only (_dl_protect_relro).
    ElfW(Addr) start = (info->dlpi_addr + part.p_vaddr) & ~0xffful;
    ElfW(Addr) end = (info->dlpi_addr + part.p_vaddr + part.p_memsz) & ~0xffful;
    if (start == end) continue;
    if (syscall(SYS_mseal, start, end - start, 0) != 0) {
      if (errno == ENOSYS) _exit(77);
      CHECK(!"mseal");
    }
    ++*static_cast<int*>(sealed);
  }
  return 0;
}

__attribute__((noinline)) static void lose() {
  for (int i = 0; i < 20; i++) keep(malloc(777));
}

int main() {
  int sealed = 0;
  dl_iterate_phdr(seal, &sealed);
  CHECK(sealed > 0);
  ready();
  lose();
  done();
}
