// 50,000 functions that keep one block each: 16 bytes in the first function, and one byte more in
// each following function.
#include "target.hpp"

using namespace target;

// The assembler generates the functions, because compiling so many C++ functions would take
// minutes.
asm(R"(
  .altmacro
  .text
  .macro one n
  .globl site\n
  .type site\n, @function
site\n:
  .cfi_startproc
  sub $8, %rsp
  .cfi_def_cfa_offset 16
  mov $16 + \n, %edi
  call malloc@PLT
  add $8, %rsp
  .cfi_def_cfa_offset 8
  ret
  .cfi_endproc
  .size site\n, . - site\n
  .endm
  .set at, 0
  .rept 50000
  one %at
  .set at, at + 1
  .endr
  .section .data.rel.ro, "aw", @progbits
  .globl all_sites
all_sites:
  .macro place n
  .quad site\n
  .endm
  .set at, 0
  .rept 50000
  place %at
  .set at, at + 1
  .endr
  .text
)");

extern "C" void* (*const all_sites[50000])();

int main() {
  ready();
  for (auto site : all_sites) keep(site());
  done();
}
