/* Marks: names for moments of a program, for the reports of memhook-rs.
 *
 *     memhook_mark("phase 2");
 *
 * costs a load and a branch that is predicted while nobody traces the process. What is traced before the call is
 * before the mark, and what is traced after it is behind it, on all threads. A name has 112 bytes at most. Marks may
 * be set by any thread, and in signal handlers; a forked child sets none until it is traced itself.
 *
 * This file is all there is; nothing has to be linked. It needs gcc or clang, ELF and x86-64, and declares a function
 * that does nothing elsewhere. */
#ifndef MEMHOOK_MARK_H
#define MEMHOOK_MARK_H

#if defined(__GNUC__) && defined(__ELF__) && defined(__x86_64__) && defined(__LP64__)

#ifdef __cplusplus
extern "C" {
#endif

/* Whoever traces the process exchanges the pointer, and puts it back afterwards. */
__attribute__((weak, visibility("hidden"), noinline)) void memhook_nobody_marks(const char *name) {
  (void)name;
}
__attribute__((weak, visibility("hidden"), used)) void (*memhook_mark_listener)(const char *) =
    memhook_nobody_marks;

/* Name "memhook", type 2: the distance from here to the pointer. In memory, so that a stripped file has it too. */
__asm__(
    ".pushsection .note.memhook.mark, \"a\", %note\n"
    ".balign 4\n"
    ".long 8, 8, 2\n"
    ".asciz \"memhook\"\n"
    ".quad memhook_mark_listener - .\n"
    ".popsection\n");

static inline void memhook_mark(const char *name) {
  void (*listener)(const char *) = __atomic_load_n(&memhook_mark_listener, __ATOMIC_ACQUIRE);
  if (__builtin_expect(listener != memhook_nobody_marks, 0)) listener(name);
}

#ifdef __cplusplus
}
#endif

#else

static inline void memhook_mark(const char *name) { (void)name; }

#endif
#endif
