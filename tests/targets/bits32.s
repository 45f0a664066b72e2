# A 32-bit program without libc: says "ready", reads until the end of the input, exits with 0.
# as --32 bits32.s -o bits32.o && ld -m elf_i386 bits32.o -o bits32
  .globl _start
  .text
_start:
  mov $4, %eax        # write(1, "ready\n", 6)
  mov $1, %ebx
  mov $words, %ecx
  mov $6, %edx
  int $0x80
1:
  mov $3, %eax        # read(0, room, 1)
  xor %ebx, %ebx
  mov $room, %ecx
  mov $1, %edx
  int $0x80
  test %eax, %eax
  jg 1b
  mov %eax, %ebx      # 0 at the end of the input
  mov $1, %eax        # exit
  int $0x80
  .section .rodata
words: .ascii "ready\n"
  .bss
room: .space 1
