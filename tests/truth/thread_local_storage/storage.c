static __thread char storage[1 << 20];

__attribute__((visibility("default"))) void touch(void) {
  storage[4096] = 1;
  __asm__ volatile("" : : "r"(storage) : "memory");
}
