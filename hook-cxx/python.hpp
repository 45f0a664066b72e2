// Python functions of the calling thread, as CPython stores them.
//
// When.  A frame must be known at the time of the allocation, but the attacher reads events later, when the frames are
// gone. So the thread walks its own frames here, with the offsets that the attacher has put into the region. Samples
// taken by the attacher would be estimates, and would belong to no block.
//
// Safety.  Only data of the calling thread is read: its state, found by the interpreter's own key in the thread's TCB,
// and the chain of frames that begins there. No other thread changes that chain. A plain load is used only while the
// thread has the interpreter's lock, as in the interpreter itself, and only after the attacher has read frames of this
// process with the same offsets. Where the chain passes through the C stack, plain loads follow only variables that are
// proved to be there (evaluations.hpp). Everything else is read through the kernel, which returns EFAULT where a load
// would fault. The walk is bounded by `depth`.
//
// Names.  An object counts as a code object, a text or bytes only if it has the corresponding type of the interpreter.
// If anything is unexpected, the whole chain is dropped: there is never a wrong name.
#pragma once
#include "locations.hpp"

namespace memhook::python {

// A walk along the calling thread's chain of frames.
struct Walk {
  Reader reader;
  bool proves;  // the chain passes through the stack, whose calls are known
  Proof proof;
  // See Proof::at().
  uint32_t innermost_seen, entry_seen;
  bool is_stale;

  // Initializes member by member: without vector registers, compilers copy and clear a whole structure with a string
  // instruction, which takes tens of cycles before it stores the first byte.
  [[gnu::always_inline]] Walk(Reader reader, bool proves, Proof proof)
      : reader{reader.direct},
        proves(proves),
        proof{proof.calls, proof.sp, proof.low, proof.high},
        innermost_seen(0),
        entry_seen(0),
        is_stale(false) {}

  // Returns true if a frame in memory of this kind may be read. If the memory may not be what it is expected to be, it
  // is read through the kernel, and so is everything to which it leads.
  [[gnu::always_inline]] bool may_read(Memory memory) {
    if (memory == Memory::unknown) reader.direct = false;
    if (memory == Memory::stale) is_stale = true;
    return memory != Memory::stale;
  }
};

// Returns the calling thread's state, and whether plain loads of its data are safe; 0 if there is none.
[[gnu::always_inline]] inline uint64_t thread_state(Reader& reader, bool may_be_direct) {
  const PythonLayout* p = layout();
  // Variables of the interpreter itself: according to the attacher, they are never unmapped.
  Reader variables{may_be_direct};
  uint64_t newest, main, key, holder, locked = 1;
  if (!variables.word(p->interpreters, &newest) || !variables.word(p->main_interpreter, &main) || newest == 0 ||
      newest != main || !variables.word(p->key, &key))
    return 0;
  uint64_t number = key >> 32;
  if ((key & 0xffff'ffff) != 1 || number >= python_keys) return 0;
  uint64_t state = *reinterpret_cast<const uint64_t*>(cpu::thread_pointer() + p->key_values + number * 16);
  if (state == 0) return 0;
  reader.direct = false;
  if (may_be_direct && p->holder != 0 && variables.word(p->holder, &holder) && holder == state) {
    if (p->locked != 0 && !variables.word(p->locked & ~7ull, &locked)) return 0;
    if (p->locked & 4) locked >>= 32;
    reader.direct = (locked & 0xffff'ffff) == 1;
  }
  return state;
}

// Length of the part of a thread's state that contains the variable of a thread that evaluates nothing. The state
// itself is longer.
inline constexpr uint64_t state_reach = 320;

// Finds the innermost frame of a thread's state. Returns false if there is none.
[[gnu::always_inline]] inline bool innermost_frame(Walk& walk, uint64_t state, uint64_t* frame) {
  const PythonLayout* p = layout();
  if (!walk.reader.word(state + p->frame, frame)) return false;
  if (p->frame_in == no_offset || *frame == 0) return *frame != 0;
  if (walk.proves && *frame - state >= state_reach) {
    Memory memory = walk.proof.at(*frame, distances.innermost, &walk.innermost_seen);
    // The frame may be on a foreign stack.
    if (memory == Memory::heap) memory = Memory::unknown;
    if (!walk.may_read(memory)) return false;
  }
  return walk.reader.word(*frame + p->frame_in, frame) && *frame != 0;
}

// A frame of a chain that was walked before, and the former contents of its code object.
struct Link {
  uint64_t code, instruction, name, file, lines;
  uint64_t mark : mark_bits, entry : 64 - mark_bits;
};
static_assert(sizeof(Link) == 48);

// A chain of frames, and the resulting backtrace. A frame that executes the same instruction of the same code object
// (see locations.hpp for identity) has the same location, so a chain in which this is true of each frame gives the same
// backtrace. A remembered chain is always compared completely.
struct Chain {
  uint64_t key;  // the native backtrace and the function; 0: empty
  uint32_t id;
  uint16_t count;
  bool is_whole;  // ends behind the last link; otherwise, no more frames were wanted
  Link links[21];
};
static_assert(sizeof(Chain) == python_chain_bytes);

inline bool is_function(const PythonLayout* p, uint8_t entry) { return p->entry_kind <= python_marked || entry < 3; }

inline uint8_t entry_of(const PythonLayout* p, const uint64_t* words) {
  return p->frame_entry == no_offset ? 1 : field<uint8_t>(words, p->frame_entry);
}

// Returns the code object of a frame. Since 3.14, the word is a `_PyStackRef`, whose lowest bits show how it is counted
// (Include/internal/pycore_stackref.h).
[[gnu::always_inline]] inline uint64_t code_of(const PythonLayout* p, const uint64_t* words) {
  return field<uint64_t>(words, p->frame_code) & ~7ull;
}

// Returns the place where a chain is stored. The address of its first frame distinguishes calls at different depths.
[[gnu::always_inline]] inline Chain* chain_of(RingHeader* ring, uint64_t key, uint64_t frame) {
  const PythonLayout* p = layout();
  auto* words = reinterpret_cast<const uint64_t*>(frame);
  uint64_t instruction = field<uint64_t>(words, p->frame_instruction);
  if (p->instruction_kind <= python_unit) instruction = static_cast<uint32_t>(instruction);
  uint64_t hash = (key ^ frame << 20 ^ instruction << 7) * 0x9e3779b97f4a7c15;
  return reinterpret_cast<Chain*>(in_ring(ring, python_chains_offset)) + ((hash >> 40) & (python_chains - 1));
}

// Returns true if the frames from `frame` on are those of the chain. pre: plain loads are safe.
[[gnu::always_inline]] inline bool still_holds(const Chain* chain, uint64_t frame, Proof proof, bool proves) {
  const PythonLayout* p = layout();
  uint16_t count = once(chain->count);
  if (count > sizeof chain->links / sizeof *chain->links) return false;
  const Link* end = chain->links + count;
  uint32_t seen = 0;
  for (const Link* link = chain->links; link != end; link++) {
    if (frame < 4096 || frame >> 47 || (frame & 7)) return false;
    auto known = static_cast<uint8_t>(link->entry);
    Memory expected = is_function(p, known) ? Memory::heap : Memory::proven;
    if (proves && proof.at(frame, distances.entry, &seen) != expected) return false;
    auto* words = reinterpret_cast<const uint64_t*>(frame);
    uint8_t entry = entry_of(p, words);
    frame = field<uint64_t>(words, p->frame_previous);
    if (known != entry) return false;
    if (!is_function(p, entry)) continue;
    // If the value is not a pointer, only the lower half of the word belongs to it.
    uint64_t differs = field<uint64_t>(words, p->frame_instruction) ^ link->instruction;
    if (p->instruction_kind <= python_unit) differs = static_cast<uint32_t>(differs);
    // The code object comes from the frame. Remembered data is only compared with it, never followed.
    uint64_t code = code_of(p, words);
    if ((code ^ link->code) | differs) return false;
    // The frame has a reference to its code object, so the object exists, but it may differ from the previous one.
    auto* object = reinterpret_cast<const uint64_t*>(code);
    differs = (object[1] ^ p->code_type) | (field<uint64_t>(object, p->code_name) ^ link->name) |
              (field<uint64_t>(object, p->code_file) ^ link->file) |
              (field<uint64_t>(object, p->code_lines) ^ link->lines);
    // A code object that is executed owns its name, its file and its line table, so these can be read.
    uint64_t mark;
    if (differs || !mark_of(PlainReader{}, object, &mark) || mark != link->mark) return false;
  }
  return !chain->is_whole || frame == 0;
}

// Fills `out` with at most `most` frames from `frame` on, innermost first, and returns their number. If a chain is
// given, its links are written; its count is 0 if there are too many links for it. The caller sets its key. `anew`:
// ignores remembered locations.
[[gnu::always_inline]] inline uint32_t frames_from(RingHeader* ring, Walk& walk, uint64_t frame, uint64_t* out,
                                                   uint32_t most, Chain* chain, bool anew) {
  const PythonLayout* p = layout();
  const Reader& reader = walk.reader;
  uint64_t buffer[python_frame_bytes / 8];
  uint64_t bytes = frame_bytes(p), bytes_of_code = code_bytes(p);
  if (bytes > python_frame_bytes || bytes_of_code > python_code_bytes) return 0;
  uint32_t count = 0, steps = 0;
  constexpr uint32_t most_links = sizeof(Chain::links) / sizeof(Link);
  // Between two functions, there is at most one frame that does not belong to a function.
  for (; frame != 0 && count < most && steps < 2 * max_depth; steps++) {
    Memory memory = walk.proves ? walk.proof.at(frame, distances.entry, &walk.entry_seen) : Memory::heap;
    if (!walk.may_read(memory)) return 0;
    const uint64_t* words = reader.view(frame, bytes, buffer);
    if (!words) return 0;
    uint8_t entry = entry_of(p, words);
    // Entry frames are on the thread's stack, and no other frames are.
    if (walk.proves && is_function(p, entry) != (memory == Memory::heap)) return 0;
    if (!reader.direct) chain = nullptr;
    frame = field<uint64_t>(words, p->frame_previous);
    Link* link = chain && steps < most_links ? &chain->links[steps] : nullptr;
    if (link) {
      link->entry = entry;
      link->mark = 0;
    }
    if (!is_function(p, entry)) {
      if (count > 0) out[count - 1] |= python_last;
      continue;
    }
    uint64_t code = code_of(p, words);
    uint64_t instruction = field<uint64_t>(words, p->frame_instruction);
    uint32_t id = location_of(ring, reader, code, instruction, bytes_of_code, anew);
    if (id == 0) return 0;
    if (link) {
      auto* object = reinterpret_cast<const uint64_t*>(code);
      uint64_t mark;
      if (!mark_of(reader, object, &mark)) return 0;
      link->mark = mark;
      link->code = code;
      link->instruction = instruction;
      link->name = field<uint64_t>(object, p->code_name);
      link->file = field<uint64_t>(object, p->code_file);
      link->lines = field<uint64_t>(object, p->code_lines);
    }
    bool is_last = p->entry_kind == python_every || (p->entry_kind == python_marked && entry != 0);
    out[count++] = python_frame | id | (is_last ? python_last : 0);
  }
  if (chain) {
    chain->count = static_cast<uint16_t>(steps <= most_links ? steps : 0);
    chain->is_whole = frame == 0;
  }
  return count;
}

inline void learn(uint32_t seen, uint32_t* distance) {
  if (seen != 0 && seen != ~0u) __atomic_store_n(distance, seen, __ATOMIC_RELAXED);
}

// Walks a chain completely and returns its backtrace. `chain`: place to remember it, or null.
[[gnu::noinline]] inline uint32_t walk_chain(RingHeader* ring, Walk& walk, uint32_t function, uint32_t native,
                                             uint64_t frame, Chain* chain, uint64_t key) {
  auto* words = reinterpret_cast<uint64_t*>(in_ring(ring, ring_scratch_offset));
  uint32_t depth = gate().depth < max_depth - 1 ? gate().depth : max_depth - 1;
  if (chain) {
    chain->key = 0;
    chain->count = 0;
    asm volatile("" ::: "memory");
  }
  words[0] = python_native | native;
  uint32_t count = frames_from(ring, walk, frame, words + 1, depth, chain, false);
  if (count == 0) return native;
  // The kernel has read all frames, and they are right.
  learn(walk.innermost_seen, &distances.innermost);
  learn(walk.entry_seen, &distances.entry);
  uint32_t id = intern_stack(function, words, count + 1, false);
  if (chain && id != 0 && chain->count != 0) {
    chain->id = id;
    // The key is stored last, because a signal handler may leave this code by siglongjmp(3) at any point.
    asm volatile("" ::: "memory");
    chain->key = key;
  }
  return id;
}

// Returns true if two words of a backtrace have the same meaning. A location has two ids if another thread took its
// slot in the index while it was written (insert_stack in stack_table.hpp).
inline bool are_alike(uint64_t a, uint64_t b) {
  constexpr uint64_t id = 0xffff'ffff;
  if (a == b) return true;
  if ((a & ~id) != (b & ~id) || (a & python_frame) != python_frame) return false;
  StackEntry *first = stack_entry(a & id), *second = stack_entry(b & id);
  uint32_t depth = once(first->depth);
  if (first->hash != second->hash || depth != second->depth || depth > max_depth) return false;
  auto *left = reinterpret_cast<const uint64_t*>(first + 1), *right = reinterpret_cast<const uint64_t*>(second + 1);
  for (uint32_t i = 0; i < depth; i++)
    if (left[i] != right[i]) return false;
  return true;
}

// Walks once more, without the remembered chain and locations, and counts a difference.
[[gnu::noinline, gnu::cold]] inline void check_chain(RingHeader* ring, Walk walk, uint32_t native, uint64_t frame,
                                                     uint32_t id) {
  auto* words = reinterpret_cast<uint64_t*>(in_ring(ring, ring_scratch_offset));
  uint32_t depth = gate().depth < max_depth - 1 ? gate().depth : max_depth - 1;
  words[0] = python_native | native;
  uint32_t count = 1 + frames_from(ring, walk, frame, words + 1, depth, nullptr, true);
  StackEntry* entry = stack_entry(id);
  auto* frames = reinterpret_cast<const uint64_t*>(entry + 1);
  bool same = entry->depth == count;
  for (uint32_t i = 0; same && i < count; i++) same = are_alike(frames[i], words[i]);
  __atomic_store_n(&ring->memo_checked, ring->memo_checked + 1, __ATOMIC_RELAXED);
  if (!same) __atomic_store_n(&ring->memo_wrong, ring->memo_wrong + 1, __ATOMIC_RELAXED);
}

// Returns the id of a backtrace combined with the Python functions of a thread's state, or the id of the backtrace
// alone if there are none.
[[gnu::always_inline]] inline uint32_t with_frames_of(RingHeader* ring, Walk& walk, uint64_t state, uint32_t function,
                                                      uint32_t native) {
  uint64_t frame;
  if (!innermost_frame(walk, state, &frame)) return native;
  Proof proof = walk.proof;
  uint32_t seen = 0;
  bool is_plain = walk.reader.direct && frame >= 4096 && !(frame >> 47) && !(frame & 7) &&
                  (!walk.proves || proof.at(frame, distances.entry, &seen) == Memory::heap);
  if (!is_plain || !has_large_caches(ring)) return walk_chain(ring, walk, function, native, frame, nullptr, 0);
  uint64_t key = uint64_t{function} << 32 | native;
  Chain* chain = chain_of(ring, key, frame);
  if (__builtin_expect(chain->key != key || !still_holds(chain, frame, walk.proof, walk.proves), 0))
    return walk_chain(ring, walk, function, native, frame, chain, key);
  if (__builtin_expect(gate().flags & flag_check_memo, 0)) check_chain(ring, walk, native, frame, chain->id);
  return chain->id;
}

// Like `with_frames_of`, for the calling thread, whose unwinding began at `at`.
[[gnu::noinline]] inline uint32_t with_frames(RingHeader* ring, uint32_t function, uint32_t native, const Position& at,
                                              bool is_release) {
  if (native == 0) return 0;
  const PythonLayout* p = layout();
  uint32_t known = __atomic_load_n(&p->state, __ATOMIC_ACQUIRE);
  Reader reader{false};
  uint64_t state = known == python_off ? 0 : thread_state(reader, known == python_direct);
  if (state == 0) return native;
  Bounds bounds = bounds_of(ring);
  Walk walk(reader, false, {nullptr, at.sp, bounds.low, bounds.high});
  // Before 3.11, frames are objects, and each has a reference to its caller.
  bool is_on_stack = p->frame_in != no_offset || p->entry_kind > python_marked;
  if (!is_on_stack) return with_frames_of(ring, walk, state, function, native);
  // If a variable of the interpreter leads to the innermost frame, that frame is proved to belong to this stack. If the
  // pointer is in the thread's state, the frame belongs to another stack until the code that exchanges stacks has
  // updated it. The outer frames may look right, if both stacks are alike. Such programs release the copies of stacks
  // at exactly that time.
  if (is_release && p->frame_in == no_offset && __atomic_load_n(&stacks_are_exchanged, __ATOMIC_RELAXED)) return native;
  // On a stack other than the thread's own, nothing is proved.
  if (at.sp < walk.proof.low || at.sp >= walk.proof.high) walk.reader.direct = false;
  if (!walk.reader.direct) return with_frames_of(ring, walk, state, function, native);
  walk.proves = true;
  uint64_t bytes = p->evaluation_end - p->evaluation;
  walk.proof.calls = evaluations_of(ring, at, native, p->evaluation, bytes, false);
  Walk first(walk.reader, walk.proves, walk.proof);
  uint32_t id = with_frames_of(ring, first, state, function, native);
  if (__builtin_expect(first.reader.direct && !first.is_stale, 1)) return id;
  walk.proof.calls = evaluations_of(ring, at, native, p->evaluation, bytes, true);
  id = with_frames_of(ring, walk, state, function, native);
  if (walk.is_stale) __atomic_store_n(&stacks_are_exchanged, true, __ATOMIC_RELAXED);
  return id;
}

}  // namespace memhook::python
