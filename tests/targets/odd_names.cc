// Unusual names: 10,000 characters long, right-to-left, double-width, with combining marks, with
// control characters. Each function keeps one block. LONG_FILE is a path of 10,000 characters.
#include <sys/prctl.h>

#include <thread>

#include "target.hpp"

using namespace target;

#define TEN(text) text text text text text text text text text text
#define LONG TEN(TEN(TEN("abcdefgh_0")))

template <class First, class Second>
struct Two {};
template <int depth>
struct Deep {
  using Type = Two<typename Deep<depth - 1>::Type, typename Deep<depth - 1>::Type>;
};
template <>
struct Deep<0> {
  using Type = int;
};

extern "C" {
void long_name() asm(LONG);
void turned_name() asm("safe_\u202e\u2066cod.live\u2069");
void acting_name() asm("act_\u009b2J\u200e_red");
void hebrew_name() asm("שלום_עולם");
void wide_name() asm("分配内存缓存管理器分配内存缓存管理器分配内存缓存管理器分配内存缓存管理器分配内存缓存管理器");
void marked_name() asm("z̴̢͇̈́a̸̧͝l̵̡͘g̶̨͠o");
}

#define KEEPS(bytes) { keep(malloc(bytes)); keep(nullptr); }

[[gnu::noinline]] void long_name() KEEPS(90001)
[[gnu::noinline]] void turned_name() KEEPS(80002)
[[gnu::noinline]] void acting_name() KEEPS(70003)
[[gnu::noinline]] void hebrew_name() KEEPS(60004)
[[gnu::noinline]] void wide_name() KEEPS(50005)
[[gnu::noinline]] void marked_name() KEEPS(40006)
// The demangled name has about 12,000 characters, and the symbol only a few hundred.
template <class Type>
[[gnu::noinline]] void of_type() KEEPS(30007)

static void on_thread(const char* name, void (*work)()) {
  std::thread([=] {
    CHECK(prctl(PR_SET_NAME, name) == 0);
    work();
  }).join();
}

int main() {
  ready();
  on_thread("\u202eeman", long_name);
  on_thread("\033[2J\033]0;x\007", turned_name);
  on_thread("", acting_name);
  on_thread("שלום", hebrew_name);
  on_thread("分配内存", wide_name);
  marked_name();
  of_type<Deep<11>::Type>();
#line 77 "/src/‮gnp.cc\33[2J"
  keep(malloc(20008));
#line 78 LONG_FILE
  keep(malloc(10009));
  done();
}
