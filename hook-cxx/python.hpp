// The Python functions of the calling thread, as CPython keeps them.
//
// When.  A frame must be known at the time of the allocation, and the attacher reads events later, when
// the frames are gone. So the thread walks its own frames here, by the offsets that the attacher has put
// into the region. Samples taken by the attacher would be estimates, and would belong to no block.
//
// Safety.  Only what belongs to the calling thread is read: its state, found by the interpreter's own key
// in the thread's TCB, and the chain of frames that begins there. No other thread changes that chain. A plain
// load is used only while the thread holds the interpreter's lock, as the interpreter itself does, and
// only after the attacher has read frames of this very process with the same offsets, and, where the chain
// passes through the C stack, only along variables that are proven to be there (evaluations.hpp); everything else is
// read through the kernel, which answers EFAULT where a load would fault. The walk is bounded by `depth`.
//
// Names.  An object counts as a code object, a text or bytes only if its type is that of the interpreter.
// Wherever something is not as expected, the whole chain is dropped: never a wrong name. A code object may be
// gone when the attacher looks, and another one be in its place, so function, file and line are written
// into the stack table here, once for each distinct location. What the thread has seen is kept by
// the code object's address and the words that make it this one.
#pragma once
#include "evaluations.hpp"
#include "stack_table.hpp"

namespace memhook::python {

inline PythonLayout* layout() { return at<PythonLayout>(python_offset); }

// What a place in the interpreter's memory holds.
struct Reader {
  bool direct;

  // `bytes` bytes at an address: where they are, or copied into `buffer`; null if they cannot be had.
  [[gnu::always_inline]] const uint64_t* view(uint64_t address, uint64_t bytes, uint64_t* buffer) const {
    // User addresses end below 2^47, and objects are aligned (the 56-bit ones of five page table levels are
    // only given to those who ask for them).
    if (address < 4096 || address >> 47 || (address & 7)) return nullptr;
    if (direct) return reinterpret_cast<const uint64_t*>(address);
    return may_call_kernel() && sys::read_own(address, buffer, bytes) ? buffer : nullptr;
  }

  [[gnu::always_inline]] bool word(uint64_t address, uint64_t* value) const {
    uint64_t buffer;
    const uint64_t* found = view(address, 8, &buffer);
    if (found) *value = *found;
    return found != nullptr;
  }
};

template <typename T>
inline T field(const uint64_t* object, uint64_t offset) {
  T value;
  __builtin_memcpy(&value, reinterpret_cast<const unsigned char*>(object) + offset, sizeof value);
  return value;
}

// Bytes one after the other.
struct Bytes {
  Reader reader;
  uint64_t at, left;
  uint64_t* chunk;  // of 512 bytes
  uint64_t have = 0, next = 0;
  const unsigned char* from = nullptr;

  bool take(uint8_t* byte) {
    if (left == 0) return false;
    if (next == have) {
      // Aligned, as the reader wants it: the first chunk begins there, and all others follow at once.
      uint64_t skip = at & 7, count = left + skip < 512 ? left + skip : 512;
      auto* found = reader.view(at - skip, count, chunk);
      if (!found) return false;
      from = reinterpret_cast<const unsigned char*>(found);
      next = skip;
      have = count;
      at += count - skip;
    }
    *byte = from[next++];
    left--;
    return true;
  }

  // An unsigned number in pieces of six bits, the lowest first (Objects/locations.md).
  bool number(uint64_t* value) {
    uint8_t byte;
    *value = 0;
    for (int shift = 0; shift < 36; shift += 6) {
      if (!take(&byte)) return false;
      *value |= static_cast<uint64_t>(byte & 63) << shift;
      if (!(byte & 64)) return true;
    }
    return false;
  }

  bool signed_number(int64_t* value) {
    uint64_t n;
    if (!number(&n)) return false;
    *value = n & 1 ? -static_cast<int64_t>(n >> 1) : static_cast<int64_t>(n >> 1);
    return true;
  }
};

// Entries of a line table at most: a function of a million instructions.
inline constexpr int most_entries = 1 << 20;

// The line of the instruction at `offset` (bytes), or -1 if it has none; false if the table makes no sense.
inline bool line_by_increments(Bytes& table, bool are_ranges, int64_t offset, int64_t* line) {
  int64_t address = 0, current = *line;
  uint8_t step, change;
  for (int i = 0; i < most_entries && table.take(&step); i++) {
    if (!table.take(&change)) return false;
    auto delta = static_cast<int8_t>(change);
    if (!are_ranges) {
      if ((address += step) > offset) break;
      current += delta;
      continue;
    }
    bool has_line = delta != -128;
    if (has_line) current += delta;
    if ((address += step) > offset) {
      *line = has_line ? current : -1;
      return true;
    }
  }
  *line = current;
  return !are_ranges;
}

inline bool line_by_locations(Bytes& table, int64_t offset, int64_t* line) {
  int64_t address = 0, current = *line;
  uint8_t head, byte;
  for (int i = 0; i < most_entries && table.take(&head); i++) {
    if (!(head & 128)) return false;
    uint32_t code = (head >> 3) & 15;
    int64_t delta = 0;
    uint64_t column;
    int bytes = 0;
    if (code == 14) {
      if (!table.signed_number(&delta)) return false;
      for (int k = 0; k < 3; k++)
        if (!table.number(&column)) return false;
    } else if (code == 13) {
      if (!table.signed_number(&delta)) return false;
    } else if (code >= 10 && code <= 12) {
      delta = code - 10;
      bytes = 2;
    } else if (code < 10) {
      bytes = 1;
    }
    for (; bytes > 0; bytes--)
      if (!table.take(&byte)) return false;
    current += delta;
    address += 2l * ((head & 7) + 1);
    if (address > offset) {
      *line = code == 15 ? -1 : current;
      return true;
    }
  }
  return false;
}

// A text's characters behind `into`, at most `most` bytes: the first or the last ones. Their width goes to
// `kind`, whether some are missing to `cut`. Returns how many bytes; -1 if it is no text.
inline int64_t copy_text(const Reader& reader, uint64_t object, unsigned char* into, int64_t most, bool from_end,
                         uint64_t* kind, bool* cut) {
  const PythonLayout* p = layout();
  uint64_t buffer[5], word;
  const uint64_t* head = reader.view(object, sizeof buffer, buffer);
  if (!head || head[1] != p->text_type) return -1;
  auto length = static_cast<int64_t>(head[2]);
  auto state = static_cast<uint32_t>(head[4]);
  uint32_t width = (state >> 2) & 7;
  bool is_compact = state & 32, is_ascii = state & 64;
  if (!is_compact || (width != 1 && width != 2 && width != 4) || length < 0 || length > 1 << 20) return -1;
  int64_t bytes = length * width;
  uint64_t data = object + (is_ascii ? p->text_ascii : p->text_other);
  *cut = bytes > most;
  if (*cut) {
    if (from_end) data += static_cast<uint64_t>(bytes - most);
    bytes = most;
  }
  *kind = width;
  // Word by word from an aligned address on: what follows the text in its last word is a part of the object.
  for (int64_t done = 0; done < bytes;) {
    uint64_t from = data + static_cast<uint64_t>(done), skip = from & 7;
    if (!reader.word(from - skip, &word)) return -1;
    int64_t count = static_cast<int64_t>(8 - skip);
    if (count > bytes - done) count = bytes - done;
    auto* source = reinterpret_cast<const unsigned char*>(&word) + skip;
    for (int64_t i = 0; i < count; i++) into[done + i] = source[i];
    done += count;
  }
  return bytes;
}

// What a thread keeps of a location. `id` 0: the entry is empty.
struct Seen {
  uint64_t code, name, file, lines;
  int64_t offset;
  int32_t first_line;
  uint32_t id;
  uint64_t unused[2];
};
static_assert(sizeof(Seen) == 64);

// Behind the frames that are being collected, on the page of the header: 1 KiB for a location, and the
// chunk of a line table.
inline uint64_t* location_words(RingHeader* ring) {
  return reinterpret_cast<uint64_t*>(in_ring(ring, ring_scratch_offset + max_depth * 8));
}
static_assert(ring_scratch_offset + max_depth * 8 * 2 + 512 <= 4096);

// Writes a location into the stack table; 0 if it cannot be had.
[[gnu::noinline]] inline uint32_t write_location(RingHeader* ring, const Reader& reader, const Seen& seen) {
  const PythonLayout* p = layout();
  uint64_t* words = location_words(ring);
  uint64_t buffer[4];
  const uint64_t* lines = reader.view(seen.lines, sizeof buffer, buffer);
  if (!lines || lines[1] != p->bytes_type || lines[2] > 1 << 24) return 0;
  int64_t line = seen.first_line;
  // An instruction before the first: the frame is about to begin.
  if (seen.offset >= 0) {
    Bytes table{reader, seen.lines + 32, lines[2], words + max_depth};
    bool found = p->lines == python_increments || p->lines == python_ranges
                     ? line_by_increments(table, p->lines == python_ranges, seen.offset, &line)
                     : line_by_locations(table, seen.offset, &line);
    if (!found) return 0;
  }
  if (line < 0 || line > 0x7fff'ffff) line = 0;  // it has none
  for (uint64_t i = 0; i < max_depth; i++) words[i] = 0;
  auto* text = reinterpret_cast<unsigned char*>(words + 1);
  uint64_t name_kind, file_kind;
  bool name_cut, file_cut;
  int64_t name = copy_text(reader, seen.name, text, python_name_bytes, false, &name_kind, &name_cut);
  if (name < 0) return 0;
  int64_t file = copy_text(reader, seen.file, text + name, python_file_bytes, true, &file_kind, &file_cut);
  if (file < 0) return 0;
  words[0] = static_cast<uint64_t>(line) | static_cast<uint64_t>(name) << 32 | static_cast<uint64_t>(file) << 42 |
             name_kind << 52 | file_kind << 55 | uint64_t{name_cut} << 58 | uint64_t{file_cut} << 59;
  auto count = static_cast<uint32_t>(1 + (name + file + 7) / 8);
  return intern_stack(python_location, words, count, false);
}

// How many bytes from the beginning of an object its last word of interest ends at.
inline uint64_t code_bytes(const PythonLayout* p) {
  uint64_t bytes = p->code_name + 8;
  if (p->code_file + 8 > bytes) bytes = p->code_file + 8;
  if (p->code_lines + 8 > bytes) bytes = p->code_lines + 8;
  return bytes;
}

inline uint64_t frame_bytes(const PythonLayout* p) {
  uint64_t bytes = p->frame_code + 8;
  if (p->frame_previous + 8 > bytes) bytes = p->frame_previous + 8;
  if (p->frame_instruction + 8 > bytes) bytes = p->frame_instruction + 8;
  if (p->frame_entry != no_offset && p->frame_entry + 1ull > bytes) bytes = p->frame_entry + 1ull;
  return bytes;
}

// Finds a location that is not remembered, and remembers it at `place`; 0 if it cannot be had.
[[gnu::noinline, gnu::cold]] inline uint32_t find_location(RingHeader* ring, const Reader& reader,
                                                           const uint64_t* object, uint64_t code, int64_t offset,
                                                           Seen* place) {
  const PythonLayout* p = layout();
  if (offset > 1 << 24 || offset < -64) return 0;
  // First and last, as for a chain: a signal handler may leave us by siglongjmp(3) at any place.
  place->id = 0;
  asm volatile("" ::: "memory");
  place->code = code;
  place->name = field<uint64_t>(object, p->code_name);
  place->file = field<uint64_t>(object, p->code_file);
  place->lines = field<uint64_t>(object, p->code_lines);
  place->first_line = field<int32_t>(object, p->code_first_line);
  place->offset = offset;
  uint32_t id = write_location(ring, reader, *place);
  asm volatile("" ::: "memory");
  return place->id = id;
}

// The id of the location of a frame that executes the instruction at `instruction` in a code object. Each allocation
// asks that for each frame, so what is remembered is compared where it is.
[[gnu::always_inline]] inline uint32_t location_of(RingHeader* ring, const Reader& reader, uint64_t code,
                                                   uint64_t instruction, uint64_t bytes) {
  const PythonLayout* p = layout();
  uint64_t buffer[python_code_bytes / 8];
  const uint64_t* object = reader.view(code, bytes, buffer);
  if (!object || object[1] != p->code_type) return 0;
  int64_t offset;
  if (p->instruction_kind == python_byte)
    offset = static_cast<int32_t>(instruction);
  else if (p->instruction_kind == python_unit)
    offset = int64_t{static_cast<int32_t>(instruction)} * 2;
  else
    offset = static_cast<int64_t>(instruction - (code + p->code_instructions));
  uint64_t hash = (code ^ static_cast<uint64_t>(offset) << 20) * 0x9e3779b97f4a7c15;
  auto* seen =
      reinterpret_cast<Seen*>(in_ring(ring, python_cache_offset)) + ((hash >> 40) & (python_cache_entries - 1));
  bool holds = (seen->code == code) & (seen->offset == offset) & (seen->name == field<uint64_t>(object, p->code_name)) &
               (seen->file == field<uint64_t>(object, p->code_file)) &
               (seen->lines == field<uint64_t>(object, p->code_lines)) &
               (seen->first_line == field<int32_t>(object, p->code_first_line)) & (seen->id != 0);
  if (__builtin_expect(holds, 1)) return seen->id;
  return find_location(ring, reader, object, code, offset, seen);
}

// A walk along the calling thread's chain of frames.
struct Walk {
  Reader reader;
  bool proves;  // the chain passes through the stack, whose calls are known
  Proof proof;
  // See Proof::at().
  uint32_t innermost_seen, entry_seen;
  bool is_stale;

  // Member by member: without vector registers, compilers copy and clear a structure as a whole by a string
  // instruction, which takes tens of cycles before its first byte.
  [[gnu::always_inline]] Walk(Reader reader, bool proves, Proof proof)
      : reader{reader.direct},
        proves(proves),
        proof{proof.calls, proof.sp, proof.low, proof.high},
        innermost_seen(0),
        entry_seen(0),
        is_stale(false) {}

  // Whether a frame's memory may be read, `Memory` for what it is. Where it may be something else than it should be, the
  // kernel reads it, and all that it leads to.
  [[gnu::always_inline]] bool may_read(Memory memory) {
    if (memory == Memory::unknown) reader.direct = false;
    if (memory == Memory::stale) is_stale = true;
    return memory != Memory::stale;
  }
};

// The calling thread's state, and whether plain loads of what belongs to it are safe; 0 if there is none.
[[gnu::always_inline]] inline uint64_t thread_state(Reader& reader, bool may_be_direct) {
  const PythonLayout* p = layout();
  // The interpreter's own variables: the attacher says that they are never unmapped.
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

// A thread's state is larger; it has the variable of a thread that evaluates nothing.
inline constexpr uint64_t state_reach = 320;

// The innermost frame of a thread's state; false if there is none.
[[gnu::always_inline]] inline bool innermost_frame(Walk& walk, uint64_t state, uint64_t* frame) {
  const PythonLayout* p = layout();
  if (!walk.reader.word(state + p->frame, frame)) return false;
  if (p->frame_in == no_offset || *frame == 0) return *frame != 0;
  if (walk.proves && *frame - state >= state_reach) {
    Memory memory = walk.proof.at(*frame, distances.innermost, &walk.innermost_seen);
    // Perhaps it is on a stack of somebody else's.
    if (memory == Memory::heap) memory = Memory::unknown;
    if (!walk.may_read(memory)) return false;
  }
  return walk.reader.word(*frame + p->frame_in, frame) && *frame != 0;
}

// A frame of a chain that was walked before, and what its code object held then.
struct Link {
  uint64_t code, instruction, name, file, lines;
  int32_t first_line;
  uint32_t entry;
};

// A chain of frames, and the backtrace that it led to. A frame that is found to execute the same instruction of the
// same code object has the same location, so a chain of which this is true of each frame gives the same backtrace.
// What is remembered is compared whole, wherever it was found.
struct Chain {
  uint64_t key;  // the native backtrace and the function; 0: empty
  uint32_t id;
  uint16_t count;
  bool is_whole;  // it ends behind the last link; else only so many frames are wanted
  Link links[21];
};
static_assert(sizeof(Chain) == python_chain_bytes);

inline bool is_function(const PythonLayout* p, uint8_t entry) { return p->entry_kind <= python_marked || entry < 3; }

inline uint8_t entry_of(const PythonLayout* p, const uint64_t* words) {
  return p->frame_entry == no_offset ? 1 : field<uint8_t>(words, p->frame_entry);
}

// The code object of a frame. Since 3.14 the word is a `_PyStackRef`, whose lowest bits say how it is counted
// (Include/internal/pycore_stackref.h).
[[gnu::always_inline]] inline uint64_t code_of(const PythonLayout* p, const uint64_t* words) {
  return field<uint64_t>(words, p->frame_code) & ~7ull;
}

// Where a chain is kept. The address of its first frame tells calls at different depths apart.
[[gnu::always_inline]] inline Chain* chain_of(RingHeader* ring, uint64_t key, uint64_t frame) {
  const PythonLayout* p = layout();
  auto* words = reinterpret_cast<const uint64_t*>(frame);
  uint64_t instruction = field<uint64_t>(words, p->frame_instruction);
  if (p->instruction_kind <= python_unit) instruction = static_cast<uint32_t>(instruction);
  uint64_t hash = (key ^ frame << 20 ^ instruction << 7) * 0x9e3779b97f4a7c15;
  return reinterpret_cast<Chain*>(in_ring(ring, python_chains_offset)) + ((hash >> 40) & (python_chains - 1));
}

// Whether the frames from `frame` on are those of the chain. pre: plain loads are safe.
[[gnu::always_inline]] inline bool still_holds(const Chain* chain, uint64_t frame, Proof proof, bool proves) {
  const PythonLayout* p = layout();
  const Link* end = chain->links + chain->count;
  uint32_t seen = 0;
  for (const Link* link = chain->links; link != end; link++) {
    if (frame < 4096 || frame >> 47 || (frame & 7)) return false;
    Memory expected = is_function(p, static_cast<uint8_t>(link->entry)) ? Memory::heap : Memory::proven;
    if (proves && proof.at(frame, distances.entry, &seen) != expected) return false;
    auto* words = reinterpret_cast<const uint64_t*>(frame);
    uint8_t entry = entry_of(p, words);
    frame = field<uint64_t>(words, p->frame_previous);
    if (link->entry != entry) return false;
    if (!is_function(p, entry)) continue;
    // Only the lower half of what is no pointer belongs to it.
    uint64_t differs = field<uint64_t>(words, p->frame_instruction) ^ link->instruction;
    if (p->instruction_kind <= python_unit) differs = static_cast<uint32_t>(differs);
    if ((code_of(p, words) ^ link->code) | differs) return false;
    // The frame holds on to its code object, so it is there, but it may be another one than last time.
    auto* object = reinterpret_cast<const uint64_t*>(link->code);
    differs = (object[1] ^ p->code_type) | (field<uint64_t>(object, p->code_name) ^ link->name) |
              (field<uint64_t>(object, p->code_file) ^ link->file) |
              (field<uint64_t>(object, p->code_lines) ^ link->lines) |
              static_cast<uint32_t>(field<int32_t>(object, p->code_first_line) ^ link->first_line);
    if (differs) return false;
  }
  return !chain->is_whole || frame == 0;
}

// Fills `out` with at most `most` frames from `frame` on, innermost first; returns how many. If a chain is given, its
// links are written; its count is 0 if they are too many for it. Its key is left to the caller.
[[gnu::always_inline]] inline uint32_t frames_from(RingHeader* ring, Walk& walk, uint64_t frame, uint64_t* out,
                                                   uint32_t most, Chain* chain) {
  const PythonLayout* p = layout();
  const Reader& reader = walk.reader;
  uint64_t buffer[python_frame_bytes / 8];
  uint64_t bytes = frame_bytes(p), bytes_of_code = code_bytes(p);
  if (bytes > python_frame_bytes || bytes_of_code > python_code_bytes) return 0;
  uint32_t count = 0, steps = 0;
  constexpr uint32_t most_links = sizeof(Chain::links) / sizeof(Link);
  // Between two functions there is at most one frame that is none.
  for (; frame != 0 && count < most && steps < 2 * max_depth; steps++) {
    Memory memory = walk.proves ? walk.proof.at(frame, distances.entry, &walk.entry_seen) : Memory::heap;
    if (!walk.may_read(memory)) return 0;
    const uint64_t* words = reader.view(frame, bytes, buffer);
    if (!words) return 0;
    uint8_t entry = entry_of(p, words);
    // Only entry frames are on stacks, and they are nowhere else.
    if (walk.proves && is_function(p, entry) != (memory == Memory::heap)) return 0;
    if (!reader.direct) chain = nullptr;
    frame = field<uint64_t>(words, p->frame_previous);
    Link* link = chain && steps < most_links ? &chain->links[steps] : nullptr;
    if (link) link->entry = entry;
    if (!is_function(p, entry)) {
      if (count > 0) out[count - 1] |= python_last;
      continue;
    }
    uint64_t code = code_of(p, words);
    uint64_t instruction = field<uint64_t>(words, p->frame_instruction);
    uint32_t id = location_of(ring, reader, code, instruction, bytes_of_code);
    if (id == 0) return 0;
    if (link) {
      auto* object = reinterpret_cast<const uint64_t*>(code);
      link->code = code;
      link->instruction = instruction;
      link->name = field<uint64_t>(object, p->code_name);
      link->file = field<uint64_t>(object, p->code_file);
      link->lines = field<uint64_t>(object, p->code_lines);
      link->first_line = field<int32_t>(object, p->code_first_line);
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

// The backtrace of a chain that is walked whole. `chain`: where it is to be remembered, if it is.
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
  uint32_t count = frames_from(ring, walk, frame, words + 1, depth, chain);
  if (count == 0) return native;
  // The kernel has read all frames, and they are right.
  learn(walk.innermost_seen, &distances.innermost);
  learn(walk.entry_seen, &distances.entry);
  uint32_t id = intern_stack(function, words, count + 1, false);
  if (chain && id != 0 && chain->count != 0) {
    chain->id = id;
    // Last: a signal handler may leave us by siglongjmp(3) at any place.
    asm volatile("" ::: "memory");
    chain->key = key;
  }
  return id;
}

// Whether two words of a backtrace mean the same. A location has two ids where another thread took its place in the index
// while it was written (insert_stack in stack_table.hpp).
inline bool are_alike(uint64_t a, uint64_t b) {
  constexpr uint64_t id = 0xffff'ffff;
  if (a == b) return true;
  if ((a & ~id) != (b & ~id) || (a & python_frame) != python_frame) return false;
  StackEntry *first = stack_entry(a & id), *second = stack_entry(b & id);
  if (first->hash != second->hash || first->depth != second->depth) return false;
  auto *left = reinterpret_cast<const uint64_t*>(first + 1), *right = reinterpret_cast<const uint64_t*>(second + 1);
  for (uint32_t i = 0; i < first->depth; i++)
    if (left[i] != right[i]) return false;
  return true;
}

// Walks once more, without what is remembered of the chain, and counts a difference.
[[gnu::noinline, gnu::cold]] inline void check_chain(RingHeader* ring, Walk walk, uint32_t native, uint64_t frame,
                                                     uint32_t id) {
  auto* words = reinterpret_cast<uint64_t*>(in_ring(ring, ring_scratch_offset));
  uint32_t depth = gate().depth < max_depth - 1 ? gate().depth : max_depth - 1;
  words[0] = python_native | native;
  uint32_t count = 1 + frames_from(ring, walk, frame, words + 1, depth, nullptr);
  StackEntry* entry = stack_entry(id);
  auto* frames = reinterpret_cast<const uint64_t*>(entry + 1);
  bool same = entry->depth == count;
  for (uint32_t i = 0; same && i < count; i++) same = are_alike(frames[i], words[i]);
  __atomic_store_n(&ring->memo_checked, ring->memo_checked + 1, __ATOMIC_RELAXED);
  if (!same) __atomic_store_n(&ring->memo_wrong, ring->memo_wrong + 1, __ATOMIC_RELAXED);
}

// The id of a backtrace together with the Python functions of a thread's state; that of the backtrace alone where there
// are none.
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

// The same for the calling thread, whose unwinding began at `at`.
[[gnu::noinline]] inline uint32_t with_frames(RingHeader* ring, uint32_t function, uint32_t native, const Position& at,
                                              bool is_release) {
  if (native == 0) return 0;
  const PythonLayout* p = layout();
  uint32_t known = __atomic_load_n(&p->state, __ATOMIC_ACQUIRE);
  Reader reader{false};
  uint64_t state = known == python_off ? 0 : thread_state(reader, known == python_direct);
  if (state == 0) return native;
  Walk walk(reader, false, {nullptr, at.sp, ring->stack_low, ring->stack_high});
  // Before 3.11, frames are objects, and each holds on to its caller.
  bool is_on_stack = p->frame_in != no_offset || p->entry_kind > python_marked;
  if (!is_on_stack) return with_frames_of(ring, walk, state, function, native);
  // Where a variable of the interpreter's leads to the innermost frame, it is proven to be of this stack. Where that is
  // in the thread's state, it is of another stack until who exchanges them has set it; the outer ones may look right, if
  // both stacks are alike. Such programs release the copies of stacks just then.
  if (is_release && p->frame_in == no_offset && __atomic_load_n(&stacks_are_exchanged, __ATOMIC_RELAXED)) return native;
  // On another stack than the thread's own, nothing is proven.
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
