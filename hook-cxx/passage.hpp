// Calls that an exception may leave, in a hook that is mapped without the loader (arch/x86_64/passage.hpp). For the
// actions before and after the calls, see passed_calls.hpp and emitting.hpp.
#pragma once
#include "arch/x86_64/passage.hpp"
#include "ring.hpp"

namespace memhook {

constexpr bool begins_with(const char* text, const char* beginning) {
  for (; *beginning; text++, beginning++)
    if (*text != *beginning) return false;
  return true;
}
constexpr bool contains(const char* text, const char* part) {
  for (; *text; text++)
    if (begins_with(text, part)) return true;
  return false;
}

// memhook_abi::may_throw.
constexpr bool may_throw(uint32_t function) {
#define MEMHOOK_SYMBOL(id, symbol, signature) #symbol,
  constexpr const char* symbols[] = {MEMHOOK_HOOKED_FUNCTIONS(MEMHOOK_SYMBOL)};
#undef MEMHOOK_SYMBOL
  if (function >= sizeof symbols / sizeof *symbols) return false;
  const char* symbol = symbols[function];
  return begins_with(symbol, "tc_new") || (begins_with(symbol, "_Zn") && !contains(symbol, "nothrow"));
}

// Calls an original that may throw. pre: there is a passage.
template <uint32_t F, uint32_t V>
[[gnu::always_inline]] inline void* pass_call(uint64_t size, uint64_t a, uint64_t b = 0) {
  return memhook_pass(a, b, size, F, originals[F][V]);
}

}  // namespace memhook
