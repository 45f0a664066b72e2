//! Python functions on backtraces: the interpreter's layout for the hook, and the locations that the hook has
//! written.

use crate::Region;
use memhook_abi::{
    ARENA_BYTES, ARENA_OFFSET, GRANULE_BYTES, MAX_DEPTH, NO_OFFSET, PYTHON_CODE_BYTES,
    PYTHON_FILE_BYTES, PYTHON_FRAME, PYTHON_FRAME_BYTES, PYTHON_LAST, PYTHON_LOCATION,
    PYTHON_NAME_BYTES, PYTHON_NATIVE, PYTHON_OFFSET, PythonLayout,
};
use std::mem::offset_of;
use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// A CPython interpreter, for the hook and for merging its frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PythonConfig {
    /// Facts for the hook.
    pub layout: PythonLayout,
    /// Code of the function that evaluates Python functions. In a backtrace, Python frames replace the frames of this
    /// function.
    pub evaluation: Range<u64>,
}

/// A location in a Python program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PythonLocation {
    /// The function, with the enclosing classes and functions if the interpreter has them.
    pub function: String,
    /// The file, as named by the interpreter.
    pub file: String,
    /// The line, if the instruction has one.
    pub line: Option<u32>,
}

/// Number of low bits that are zero in the address of a Python frame, because locations are at least a granule apart.
const GRANULE_BITS: u32 = GRANULE_BYTES.trailing_zeros();

/// Returns the placeholder for a location in [`Stack::frames`](crate::Stack::frames). No address of a process has this
/// form.
fn address_of(location: u32) -> u64 {
    PYTHON_FRAME | u64::from(location) << GRANULE_BITS
}

/// Returns true for the placeholder of a Python function's location, as opposed to an address of code.
pub fn is_python(address: u64) -> bool {
    address & PYTHON_FRAME != 0
}

impl Region {
    /// Writes the layout for the hook, as part of the initialization.
    pub(crate) fn write_python(&self, config: &PythonLayout) {
        for (offset, value) in [
            (offset_of!(PythonLayout, key), config.key),
            (offset_of!(PythonLayout, interpreters), config.interpreters),
            (
                offset_of!(PythonLayout, main_interpreter),
                config.main_interpreter,
            ),
            (offset_of!(PythonLayout, holder), config.holder),
            (offset_of!(PythonLayout, locked), config.locked),
            (offset_of!(PythonLayout, code_type), config.code_type),
            (offset_of!(PythonLayout, text_type), config.text_type),
            (offset_of!(PythonLayout, bytes_type), config.bytes_type),
            (offset_of!(PythonLayout, evaluation), config.evaluation),
            (
                offset_of!(PythonLayout, evaluation_end),
                config.evaluation_end,
            ),
        ] {
            self.memory.tell64(PYTHON_OFFSET + offset, value, Relaxed);
        }
        for (offset, value) in [
            (offset_of!(PythonLayout, lines), config.lines),
            (offset_of!(PythonLayout, key_values), config.key_values),
            (offset_of!(PythonLayout, frame), config.frame),
            (offset_of!(PythonLayout, frame_in), config.frame_in),
            (offset_of!(PythonLayout, frame_code), config.frame_code),
            (
                offset_of!(PythonLayout, frame_previous),
                config.frame_previous,
            ),
            (
                offset_of!(PythonLayout, frame_instruction),
                config.frame_instruction,
            ),
            (offset_of!(PythonLayout, frame_entry), config.frame_entry),
            (offset_of!(PythonLayout, entry_kind), config.entry_kind),
            (
                offset_of!(PythonLayout, instruction_kind),
                config.instruction_kind,
            ),
            (offset_of!(PythonLayout, code_name), config.code_name),
            (offset_of!(PythonLayout, code_file), config.code_file),
            (
                offset_of!(PythonLayout, code_first_line),
                config.code_first_line,
            ),
            (offset_of!(PythonLayout, code_lines), config.code_lines),
            (
                offset_of!(PythonLayout, code_instructions),
                config.code_instructions,
            ),
            (offset_of!(PythonLayout, text_ascii), config.text_ascii),
            (offset_of!(PythonLayout, text_other), config.text_other),
            (offset_of!(PythonLayout, code_version), config.code_version),
        ] {
            self.memory.tell32(PYTHON_OFFSET + offset, value, Relaxed);
        }
    }

    /// Sets how the hook may find Python frames: one of [`memhook_abi::python_state`].
    pub fn set_python_state(&self, state: u32) {
        let offset = PYTHON_OFFSET + offset_of!(PythonLayout, state);
        // Release: a thread that sees the state also sees the layout.
        self.memory.tell32(offset, state, Release);
    }

    /// Returns how the hook finds Python frames: one of [`memhook_abi::python_state`].
    pub(crate) fn python_state(&self) -> u32 {
        let offset = PYTHON_OFFSET + offset_of!(PythonLayout, state);
        self.memory.told32(offset)
    }

    /// Returns the words of an entry of the stack table, with its head: function, truncated, words.
    pub(crate) fn entry(&self, id: u32) -> Option<(u8, bool, Vec<u64>)> {
        let start = (id as usize).checked_mul(GRANULE_BYTES)?;
        if id == 0 || start >= ARENA_BYTES {
            return None;
        }
        let head = self.memory.u64(ARENA_OFFSET + start).load(Relaxed);
        let depth = (head >> 48) as usize;
        let room = (ARENA_BYTES - start) / 8 - 1;
        if depth == 0 || depth > MAX_DEPTH || depth > room {
            return None;
        }
        let words = self.memory.words(ARENA_OFFSET + start + 8, depth);
        let words = words.iter().map(|word| word.load(Relaxed)).collect();
        Some(((head >> 32) as u8, (head >> 40) & 0xff != 0, words))
    }

    /// Returns the location in a Python program for a frame of a stack.
    pub fn python_location(&self, address: u64) -> Option<PythonLocation> {
        if !is_python(address) {
            return None;
        }
        let id = u32::try_from((address & !PYTHON_FRAME) >> GRANULE_BITS).ok()?;
        match self.entry(id)? {
            (PYTHON_LOCATION, _, words) => location(&words),
            _ => None,
        }
    }
}

/// Parses a location written by the hook.
fn location(words: &[u64]) -> Option<PythonLocation> {
    let (&head, rest) = words.split_first()?;
    let bytes: Vec<u8> = rest.iter().flat_map(|word| word.to_le_bytes()).collect();
    let part = |shift: u32, bits: u32| ((head >> shift) & ((1 << bits) - 1)) as usize;
    let (name, file) = (part(32, 10), part(42, 10));
    if name > PYTHON_NAME_BYTES || file > PYTHON_FILE_BYTES {
        return None;
    }
    let function = text(bytes.get(..name)?, part(52, 3))?;
    let path = text(bytes.get(name..name + file)?, part(55, 3))?;
    let (name_is_cut, file_is_cut) = (part(58, 1) != 0, part(59, 1) != 0);
    Some(PythonLocation {
        function: if name_is_cut {
            function + "..."
        } else {
            function
        },
        file: if file_is_cut {
            format!("...{path}")
        } else {
            path
        },
        line: Some(head as u32).filter(|&line| line != 0),
    })
}

/// Decodes characters of one, two or four bytes each.
fn text(bytes: &[u8], width: usize) -> Option<String> {
    let character = |code: u32| char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    Some(match width {
        1 => bytes.iter().map(|&byte| char::from(byte)).collect(),
        2 => {
            let units = bytes.chunks_exact(2);
            units
                .map(|unit| character(u16::from_le_bytes([unit[0], unit[1]]).into()))
                .collect()
        }
        4 => {
            let units = bytes.chunks_exact(4);
            units
                .map(|u| character(u32::from_le_bytes([u[0], u[1], u[2], u[3]])))
                .collect()
        }
        _ => return None,
    })
}

/// Returns the native backtrace of an entry with Python functions.
pub(crate) fn native_of(words: &[u64]) -> Option<u32> {
    let first = words.first()?;
    (first & PYTHON_NATIVE == PYTHON_NATIVE).then_some(*first as u32)
}

/// Replaces the native frames of the evaluation function by Python functions: each call of it evaluates a sequence of
/// them. If such a call is missing because the native backtrace was cut short, its functions follow at the end, because
/// they are callers of everything before.
pub(crate) fn merge(native: &[u64], python: &[u64], evaluation: &Range<u64>) -> Vec<u64> {
    let mut merged = Vec::with_capacity(native.len() + python.len());
    let mut left = python.iter();
    let mut run = |merged: &mut Vec<u64>| {
        for frame in left.by_ref() {
            merged.push(address_of(*frame as u32));
            if frame & PYTHON_LAST != 0 {
                return true;
            }
        }
        false
    };
    for &pc in native {
        // A return address is after its call.
        if !evaluation.contains(&pc.wrapping_sub(1)) {
            merged.push(pc);
        } else {
            run(&mut merged);
        }
    }
    while run(&mut merged) {}
    merged.truncate(MAX_DEPTH);
    merged
}

/// Returns true if a layout may be passed to the hook. The hook reads frames and code objects only up to a limit.
pub(crate) fn is_possible(config: &PythonLayout) -> bool {
    let in_frame = [
        config.frame_code,
        config.frame_previous,
        config.frame_instruction,
    ];
    let in_code = [
        config.code_name,
        config.code_file,
        config.code_first_line,
        config.code_lines,
    ];
    let fits = |offset: &u32, bytes: usize| *offset as usize + 8 <= bytes;
    let version_fits =
        config.code_version == NO_OFFSET || fits(&config.code_version, PYTHON_CODE_BYTES);
    let entry_fits =
        config.frame_entry == NO_OFFSET || (config.frame_entry as usize) < PYTHON_FRAME_BYTES;
    in_frame
        .iter()
        .all(|offset| fits(offset, PYTHON_FRAME_BYTES))
        && in_code.iter().all(|offset| fits(offset, PYTHON_CODE_BYTES))
        && entry_fits
        && version_fits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_functions_take_the_places_of_their_evaluation() {
        let evaluation = 100..200;
        let [a, b, c] = [1, 2, 3].map(|n| PYTHON_FRAME | n);
        let last = |frame| frame | PYTHON_LAST;
        let named = |ids: &[u32]| -> Vec<u64> { ids.iter().map(|&id| address_of(id)).collect() };
        // Two calls; the inner one evaluates two functions. An address directly after the function counts.
        let merged = merge(
            &[5, 150, 300, 200, 400],
            &[a, last(b), last(c)],
            &evaluation,
        );
        let [x, y, z] = [1, 2, 3].map(address_of);
        assert_eq!(merged, [5, x, y, 300, z, 400]);
        // The native backtrace was cut short before the outer call, or before both.
        assert_eq!(merge(&[5, 150], &[a, last(b), last(c)], &evaluation), {
            let mut all = vec![5];
            all.extend(named(&[1, 2, 3]));
            all
        });
        assert_eq!(merge(&[5], &[last(a), b], &evaluation), [5, x, y]);
        // With more calls than functions, the evaluation function is not shown.
        assert_eq!(merge(&[150, 6, 150], &[last(a)], &evaluation), [x, 6]);
    }

    #[test]
    fn locations_are_read_as_written() {
        let mut words = vec![7 | 5 << 32 | 4 << 42 | 1 << 52 | 2 << 55 | 1 << 59, 0, 0];
        let mut bytes = b"f.<l>".to_vec();
        bytes.extend([0x61, 0, 0x42, 0x30]);
        bytes.resize(16, 0);
        for (word, eight) in words[1..].iter_mut().zip(bytes.chunks(8)) {
            *word = u64::from_le_bytes(eight.try_into().unwrap());
        }
        let found = location(&words).unwrap();
        assert_eq!(found.function, "f.<l>");
        assert_eq!(found.file, "...a\u{3042}");
        assert_eq!(found.line, Some(7));
        // Lengths beyond the words, and characters of no width.
        assert_eq!(location(&words[..2]), None);
        assert_eq!(location(&[1 << 32, 0]), None);
        assert_eq!(location(&[]), None);
    }
}
