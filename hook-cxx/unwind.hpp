// Unwinding with the compact tables that the attacher compiled from .eh_frame.
//
// One step: the rule for a PC gives the CFA from rsp or rbp; the return address is at CFA - 8, and the caller's rsp is
// the CFA (x86-64 psABI, 3.2.2 and 6.2).
#pragma once
#include "ring.hpp"

namespace memhook {

struct PcCacheEntry {
  uint64_t key, rule;
};

// PCs are stored with the low bits of the module list's version, so that nothing learned under an older list is found,
// and with bit 47 (user addresses end below it) if they are not return addresses.
inline constexpr uint64_t exact_pc = 1ull << 47;

inline unsigned char* in_ring(RingHeader* ring, uint64_t offset) {
  return reinterpret_cast<unsigned char*>(ring) + offset;
}

inline uint64_t module_list() { return __atomic_load_n(&control()->module_list, __ATOMIC_ACQUIRE); }

// Returns the rule for `pc` in one state of the module list.
inline uint64_t rule_in_list(uint64_t list, uint64_t pc, bool exact) {
  auto* modules = in_guide<ModuleEntry>(modules_offset) + ((list >> 32) & 1) * max_modules;
  uint64_t count = list & 0xffff'ffff, low = 0;
  if (count > max_modules) count = max_modules;
  while (count > 0) {  // the first module that starts behind pc
    uint64_t half = count / 2;
    if (modules[low + half].start <= pc) {
      low += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  if (low == 0 || pc >= modules[low - 1].end) return cfa_stop;
  const ModuleEntry& module = modules[low - 1];
  // memhook_call_via returns through this instruction, so the instruction before it does not matter.
  if (!exact && pc == module.ret_gadget) return cfa_rsp | 8ull << 32;
  // A return address may be the first byte of the next function, so the address of the call before it is looked up.
  uint64_t offset = pc - !exact - module.base;
  uint64_t first = module.first_row, rows = module.row_count;
  if (offset >> 32 || first + rows > max_rows) return cfa_stop;
  auto* offsets = in_guide<uint32_t>(row_offsets_offset) + first;
  uint64_t row = 0;
  while (rows > 0) {
    uint64_t half = rows / 2;
    if (offsets[row + half] <= offset) {
      row += half + 1;
      rows -= half + 1;
    } else {
      rows = half;
    }
  }
  auto* numbers = in_guide<uint16_t>(row_rules_offset) + first;
  auto* rules = in_guide<uint64_t>(rules_offset);
  uint64_t rule = row == 0 ? uint64_t{cfa_stop} : rules[numbers[row - 1]];
  // No call precedes this address, but a function begins here. No call was made, because makecontext(3) starts a stack
  // like this (glibc's __start_context, whose own CFI leads into its arguments).
  if ((rule & 0xff) == cfa_stop && !exact && row < module.row_count && offsets[row] == offset + 1) return cfa_end;
  if ((rule & 0xff) == cfa_stop && module.keeps_frame_pointers) return rule_made;
  return rule;
}

[[gnu::noinline]] inline uint64_t find_rule(uint64_t pc, bool exact) {
  for (int tries = 0; tries < 3; tries++) {
    uint64_t list = module_list();
    uint64_t rule = rule_in_list(list, pc, exact);
    // The list just read is rewritten only after the next version has been published. So if the version is unchanged,
    // the list that was read was complete.
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (module_list() == list) return rule;
  }
  return cfa_stop;
}

[[gnu::always_inline]] inline uint64_t rule_of(RingHeader* ring, uint64_t tag, uint64_t pc, bool exact) {
  auto* cache = reinterpret_cast<PcCacheEntry*>(in_ring(ring, pc_cache_offset));
  PcCacheEntry& entry = cache[(pc ^ (pc >> 11)) & once(ring->pc_mask) & (pc_cache_entries - 1)];
  uint64_t key = pc | tag | (exact ? exact_pc : 0);
  // Any rule is safe: the address that it leads to is read within the bounds of the stack, or by the kernel.
  if (__builtin_expect(once(entry.key) == key, 1)) return once(entry.rule);
  uint64_t rule = find_rule(pc, exact);
  entry.rule = rule;
  entry.key = key;
  return rule;
}

// Stack bounds of a ring's owner; empty if unknown, or if `checks_owner` (probe.cc) is set and the calling thread is a
// different thread.
struct Bounds {
  uint64_t low, high;
};

#ifndef MEMHOOK_CHECKS_OWNER
inline constexpr bool checks_owner = false;
#else
inline constexpr bool checks_owner = true;
#endif

[[gnu::always_inline]] inline Bounds bounds_of(const RingHeader* ring) {
  uint64_t place = (reinterpret_cast<uint64_t>(ring) - reinterpret_cast<uint64_t>(region)) >> bounds_shift;
  const StackBounds* bounds = in_guide<StackBounds>(bounds_offset) + place;
  // The order of these loads matters: see set_stack_bounds() of the stream crate.
  uint64_t high = __atomic_load_n(&bounds->high, __ATOMIC_ACQUIRE), low = once(bounds->low);
  if constexpr (checks_owner)
    if (once(bounds->tid) != kept_number(cpu::thread_pointer())) return {0, 0};
  return {low, high};
}

// Reads stack memory without faulting: plain loads between the current frame and the end of the thread's stack, which
// is mapped as long as the thread runs on it, and reads through the kernel, page by page, everywhere else.
struct StackReader {
  uint64_t low, span;  // direct: address - low <= span
  uint64_t page_at;
  uint64_t* page;

  StackReader(RingHeader* ring, uint64_t sp)
      : low(~0ull),
        span(0),
        page_at(~0ull),
        page(reinterpret_cast<uint64_t*>(in_ring(ring, ring_scratch_offset + max_depth * 8))) {
    Bounds bounds = bounds_of(ring);
    if (sp >= bounds.low && sp < bounds.high) {
      low = sp;
      span = bounds.high - 8 - sp;
    }
  }

  [[gnu::noinline, gnu::cold]] bool read_through_kernel(uint64_t address, uint64_t* value) {
    if (address & 7) return false;
    uint64_t start = address & ~4095ull;
    if (start != page_at) {
      page_at = ~0ull;
      if (!may_call_kernel() || !sys::read_own(start, page, 4096)) return false;
      page_at = start;
    }
    *value = once(page[(address & 4095) / 8]);
    return true;
  }

  [[gnu::always_inline]] bool read(uint64_t address, uint64_t* value) {
    if (__builtin_expect(address - low <= span, 1)) {
      *value = *reinterpret_cast<const uint64_t*>(address);
      return true;
    }
    return read_through_kernel(address, value);
  }
};

// Position that an unwinding has reached.
struct Position {
  uint64_t pc, sp, rbp;
};

// Fills `pcs` with at most `depth` return addresses, and returns their number. `trace` receives every stack word on
// which the result depends. pre: depth > 0.
template <typename Trace>
[[gnu::always_inline]] inline uint32_t unwind(RingHeader* ring, uint64_t tag, Position at, uint64_t* pcs,
                                              uint32_t depth, bool* truncated, Trace& trace) {
  StackReader stack(ring, at.sp);
  bool exact = false;
  uint32_t count = 1;
  pcs[0] = at.pc;
  while (count < depth) {
    uint64_t rule = rule_of(ring, tag, at.pc, exact);
    uint64_t kind = rule & 0xff, rbp_kind = (rule >> 8) & 0xff;
    uint64_t cfa_offset = static_cast<int64_t>(rule) >> 32;
    uint64_t rbp_offset = static_cast<int64_t>(static_cast<int16_t>(rule >> 16));
    uint64_t cfa;
    if (__builtin_expect(kind == cfa_rsp, 1)) {
      cfa = at.sp + cfa_offset;
    } else if (kind == cfa_rbp) {
      trace.uses_rbp();
      cfa = at.rbp + cfa_offset;
    } else if (kind == cfa_at_rbp) {
      trace.uses_rbp();
      uint64_t place = at.rbp + cfa_offset;
      if (!stack.read(place, &cfa)) {
        *truncated = true;
        trace.spoil();
        return count;
      }
      trace.reads(place, cfa);
    } else if (kind == cfa_made) {
      // The frame pointer has to be valid: aligned, in the stack, and not below the stack pointer.
      trace.uses_rbp();
      if ((at.rbp & 7) || at.rbp < at.sp) {
        *truncated = true;
        trace.spoil();
        return count;
      }
      cfa = at.rbp + cfa_offset;
    } else if (kind == cfa_plt) {
      // A lazy PLT entry is 16 bytes long; its push ends at byte 11 (as in GCC's and LLVM's own
      // CFA expression for .plt).
      cfa = at.sp + 8 + ((at.pc & 15) >= 11 ? 8 : 0);
    } else if (kind == cfa_signal) {
      // The interrupted stack may be a different stack.
      uint64_t base = at.sp;
      trace.spoil();
      if (!stack.read(base + cpu::signal_frame_pointer, &at.rbp) ||
          !stack.read(base + cpu::signal_stack_pointer, &at.sp) ||
          !stack.read(base + cpu::signal_program_counter, &at.pc)) {
        *truncated = true;
        return count;
      }
      exact = true;
      pcs[count++] = at.pc;
      continue;
    } else {
      *truncated = kind == cfa_stop;
      return count;
    }
    uint64_t caller;
    // The stack grows down, so a caller's frame is higher.
    if (cfa <= at.sp || !stack.read(cfa - 8, &caller)) {
      *truncated = true;
      trace.spoil();
      return count;
    }
    trace.reads(cfa - 8, caller);
    if (caller == 0) return count;
    // Without frame pointers, rbp does not lead to a return address in known code.
    if (__builtin_expect(kind == cfa_made, 0) && (rule_of(ring, tag, caller, false) & 0xff) == cfa_stop) {
      *truncated = true;
      return count;
    }
    if (rbp_kind != rbp_same) {
      if (rbp_kind == rbp_at_rbp) trace.uses_rbp();
      uint64_t place = (rbp_kind == rbp_at_cfa ? cfa : at.rbp) + rbp_offset;
      if (stack.read(place, &at.rbp)) {
        trace.restores_rbp(place, at.rbp);
      } else {
        at.rbp = 0;  // determined on demand
        trace.spoil();
      }
    }
    at.pc = caller;
    at.sp = cfa;
    exact = false;
    pcs[count++] = caller;
  }
  return count;
}

}  // namespace memhook
