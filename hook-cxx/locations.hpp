// Location of a Python frame: function, file and line of the instruction that it executes.
//
// By the time the attacher looks, a code object may be gone and replaced by another. So the hook writes each distinct
// location into the stack table, once. Locations that the thread has already seen are cached by the address and the
// identity of the code object.
//
// Identity.  A program that discards code and compiles other code, such as exec() of a string, may get exactly the same
// memory back: code object, name, file and line table at the same addresses, with a different line in the table. So
// addresses do not identify a code object. Since 3.12, each code object has a unique number (`co_version`; 0 if a
// program has created 2^32 of them). Before that, or without a number, the contents identify it: the hashes that the
// interpreter stores in the objects, which depend on each of their bytes. Most names have a hash, and so do the line
// tables that the compiler has created since 3.10. To keep the cost low for each frame of each allocation, only the
// length and the first and last bytes of a line table without a hash count, only the length and the last bytes of a
// file name, and nothing of a function name. So before 3.12, code objects without hashes can still be confused, if they
// differ only in other bytes: for example, code of a module that was changed and imported again, or code compiled by
// 3.8 and 3.9.
#pragma once
#include "evaluations.hpp"
#include "stack_table.hpp"

namespace memhook::python {

inline const PythonLayout* layout() { return in_guide<PythonLayout>(python_offset); }

// Reads the interpreter's memory.
struct Reader {
  bool direct;

  // Returns a pointer to `bytes` bytes at an address, in place or copied into `buffer`; null if they cannot be read.
  [[gnu::always_inline]] const uint64_t* view(uint64_t address, uint64_t bytes, uint64_t* buffer) const {
    // User addresses end below 2^47, and objects are aligned. The 56-bit addresses of five-level page tables are only
    // given to programs that ask for them.
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

// Reads consecutive bytes.
struct Bytes {
  Reader reader;
  uint64_t at, left;
  uint64_t* chunk;  // of 512 bytes
  uint64_t have = 0, next = 0;
  const unsigned char* from = nullptr;

  bool take(uint8_t* byte) {
    if (left == 0) return false;
    if (next == have) {
      // Aligned, as the reader requires: the first chunk begins there, and all others follow it directly.
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

  // Reads an unsigned number in pieces of six bits, the lowest first (Objects/locations.md).
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

// Limit on the number of entries in a line table: enough for a function with a million instructions.
inline constexpr int most_entries = 1 << 20;

// Returns the line of the instruction at `offset` (bytes), or -1 if it has no line. Returns false if the table is
// invalid.
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

// Limits on the characters of a string, and on the bytes of a line table.
inline constexpr uint64_t most_text = 1 << 20, most_line_bytes = 1 << 24;

// Copies the first or last characters of a string to the end of `into`, at most `most` bytes. Stores the width of the
// characters in `kind`, and in `cut` whether some are missing. Returns the number of bytes; -1 if the object is not a
// string.
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
  if (!is_compact || (width != 1 && width != 2 && width != 4) || length < 0 || length > static_cast<int64_t>(most_text))
    return -1;
  int64_t bytes = length * width;
  uint64_t data = object + (is_ascii ? p->text_ascii : p->text_other);
  *cut = bytes > most;
  if (*cut) {
    if (from_end) data += static_cast<uint64_t>(bytes - most);
    bytes = most;
  }
  *kind = width;
  // Reads word by word, starting at an aligned address. The bytes that follow the string in its last word still belong
  // to the object.
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

// Reader for code in which plain loads are safe and the address is known to be that of an object.
struct PlainReader {
  [[gnu::always_inline]] const uint64_t* view(uint64_t address, uint64_t, uint64_t*) const {
    return reinterpret_cast<const uint64_t*>(address);
  }
};

// Number of bits in a code object's mark.
inline constexpr uint64_t mark_bits = 56;
// Value of an object's hash until it is first needed.
inline constexpr uint64_t no_hash = ~0ull;

// Computes a mark that distinguishes a code object from earlier ones at the same address whose name, file and line
// table were also at the same addresses; see above. Returns false if the object cannot be read.
template <typename SomeReader>
[[gnu::always_inline]] inline bool sum_of_contents(const SomeReader& reader, const uint64_t* object, uint64_t* mark) {
  const PythonLayout* p = layout();
  uint64_t file_at = field<uint64_t>(object, p->code_file), lines_at = field<uint64_t>(object, p->code_lines);
  uint64_t name_buffer, file_buffer[5], lines_buffer[5], end_buffer;
  const uint64_t* name_hash = reader.view(field<uint64_t>(object, p->code_name) + 24, 8, &name_buffer);
  const uint64_t* file = reader.view(file_at, sizeof file_buffer, file_buffer);
  const uint64_t* lines = reader.view(lines_at, sizeof lines_buffer, lines_buffer);
  if (!name_hash || !file || !lines) return false;
  uint64_t file_length = file[2], file_hash = file[3], lines_length = lines[2], lines_hash = lines[3];
  uint64_t sum = *name_hash + (file_hash << 21 | file_hash >> 43) + (lines_hash << 42 | lines_hash >> 22) +
                 (file_length << 36) + (lines_length << 17) + field<uint32_t>(object, p->code_first_line);
  // The length leads to the end of the object only if the object has the interpreter's own type for file names or line
  // tables. In other objects, it may lead anywhere. A length of 0 leads to the word before the bytes, which belongs to
  // the object too.
  if (file_hash == no_hash) {
    // An instance of a class that the program defines has its characters elsewhere; see copy_text().
    if (file[1] != p->text_type || !(file[4] & 32) || file_length > most_text) return false;
    const uint64_t* end = reader.view(file_at + p->text_ascii + ((file_length - 1) & ~7ull), 8, &end_buffer);
    if (!end) return false;
    sum += *end * 0xc4ceb9fe1a85ec53;
  }
  if (lines_hash == no_hash) {
    if (lines[1] != p->bytes_type || lines_length > most_line_bytes) return false;
    const uint64_t* end = reader.view(lines_at + 32 + ((lines_length - 1) & ~7ull), 8, &end_buffer);
    if (!end) return false;
    sum += lines[4] * 0x9e3779b97f4a7c15 + *end * 0xd6e8feb86659fd93;
  }
  *mark = (sum ^ sum >> 8) & ((1ull << mark_bits) - 1);
  return true;
}

// A separate, noinline function: its caller makes deeper calls, during which the copies would take up stack space.
[[gnu::noinline]] inline bool mark_of_contents(const Reader& reader, const uint64_t* object, uint64_t* mark) {
  return sum_of_contents(reader, object, mark);
}

[[gnu::always_inline]] inline bool mark_of_contents(const PlainReader& reader, const uint64_t* object, uint64_t* mark) {
  return sum_of_contents(reader, object, mark);
}

template <typename SomeReader>
[[gnu::always_inline]] inline bool mark_of(const SomeReader& reader, const uint64_t* object, uint64_t* mark) {
  const PythonLayout* p = layout();
  *mark = p->code_version != no_offset ? field<uint32_t>(object, p->code_version) : 0;
  return *mark != 0 || mark_of_contents(reader, object, mark);
}

// A location cached by a thread. If `id` is 0, the entry is empty.
struct Seen {
  uint64_t code, name, file, lines;
  int64_t offset;
  int32_t first_line;
  uint32_t id;
  uint64_t mark;
  uint64_t unused;
};
static_assert(sizeof(Seen) == 64);

// Space after the frames that are being collected, on the page of the ring header: 1 KiB for a location and a chunk of
// a line table.
inline uint64_t* location_words(RingHeader* ring) {
  return reinterpret_cast<uint64_t*>(in_ring(ring, ring_scratch_offset + max_depth * 8));
}
static_assert(ring_scratch_offset + max_depth * 8 * 2 + 512 <= 4096);

// Writes a location into the stack table. Returns 0 if the location cannot be read.
[[gnu::noinline]] inline uint32_t write_location(RingHeader* ring, const Reader& reader, const Seen& seen) {
  const PythonLayout* p = layout();
  uint64_t* words = location_words(ring);
  uint64_t buffer[4];
  const uint64_t* lines = reader.view(seen.lines, sizeof buffer, buffer);
  if (!lines || lines[1] != p->bytes_type || lines[2] > most_line_bytes) return 0;
  int64_t line = seen.first_line;
  // If the offset is negative, the frame is about to start and has the first line.
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

// Returns the number of bytes from the beginning of an object to the end of its last relevant word.
inline uint64_t code_bytes(const PythonLayout* p) {
  uint64_t bytes = p->code_name + 8;
  if (p->code_file + 8 > bytes) bytes = p->code_file + 8;
  if (p->code_lines + 8 > bytes) bytes = p->code_lines + 8;
  if (p->code_version != no_offset && p->code_version + 4ull > bytes) bytes = p->code_version + 4ull;
  return bytes;
}

inline uint64_t frame_bytes(const PythonLayout* p) {
  uint64_t bytes = p->frame_code + 8;
  if (p->frame_previous + 8 > bytes) bytes = p->frame_previous + 8;
  if (p->frame_instruction + 8 > bytes) bytes = p->frame_instruction + 8;
  if (p->frame_entry != no_offset && p->frame_entry + 1ull > bytes) bytes = p->frame_entry + 1ull;
  return bytes;
}

// Finds a location that is not cached, and caches it at `place` unless that is null. Returns 0 if the location cannot
// be read. Other processes may write to cached data (state.hpp), so no address in it is ever dereferenced.
[[gnu::noinline, gnu::cold]] inline uint32_t find_location(RingHeader* ring, const Reader& reader,
                                                           const uint64_t* object, uint64_t code, int64_t offset,
                                                           Seen* place) {
  const PythonLayout* p = layout();
  if (offset > 1 << 24 || offset < -64) return 0;
  Seen seen;
  seen.code = code;
  seen.name = field<uint64_t>(object, p->code_name);
  seen.file = field<uint64_t>(object, p->code_file);
  seen.lines = field<uint64_t>(object, p->code_lines);
  seen.first_line = field<int32_t>(object, p->code_first_line);
  seen.offset = offset;
  if (!mark_of(reader, object, &seen.mark)) return 0;
  uint32_t id = write_location(ring, reader, seen);
  if (place == nullptr || id == 0) return id;
  // `id` is written first and last, as for a chain, because a signal handler may leave this code by siglongjmp(3) at
  // any point.
  place->id = 0;
  asm volatile("" ::: "memory");
  place->code = seen.code;
  place->name = seen.name;
  place->file = seen.file;
  place->lines = seen.lines;
  place->first_line = seen.first_line;
  place->offset = seen.offset;
  place->mark = seen.mark;
  asm volatile("" ::: "memory");
  return place->id = id;
}

// Returns the id of the location of a frame that executes the instruction at `instruction` in a code object. Each
// allocation needs this for each frame, so cached data is compared in place. `anew`: ignore cached data.
[[gnu::always_inline]] inline uint32_t location_of(RingHeader* ring, const Reader& reader, uint64_t code,
                                                   uint64_t instruction, uint64_t bytes, bool anew) {
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
  if (anew) return find_location(ring, reader, object, code, offset, nullptr);
  uint64_t hash = (code ^ static_cast<uint64_t>(offset) << 20) * 0x9e3779b97f4a7c15;
  auto* seen =
      reinterpret_cast<Seen*>(in_ring(ring, python_cache_offset)) + ((hash >> 40) & (python_cache_entries - 1));
  bool holds = (seen->code == code) & (seen->offset == offset) & (seen->name == field<uint64_t>(object, p->code_name)) &
               (seen->file == field<uint64_t>(object, p->code_file)) &
               (seen->lines == field<uint64_t>(object, p->code_lines)) &
               (seen->first_line == field<int32_t>(object, p->code_first_line)) & (seen->id != 0);
  uint64_t mark;
  if (__builtin_expect(holds && mark_of(reader, object, &mark) && seen->mark == mark, 1)) return once(seen->id);
  return find_location(ring, reader, object, code, offset, seen);
}

}  // namespace memhook::python
