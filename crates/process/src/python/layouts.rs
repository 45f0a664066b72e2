//! Layouts of CPython's structures by version, from its headers (`Include/internal`, with `Py_BUILD_CORE`): 64-bit,
//! without `Py_TRACE_REFS`, with the global interpreter lock.
//!
//! 3.13 and 3.14 describe most of their structures in `_Py_DebugOffsets`, at the beginning of `_PyRuntime`. This table
//! provides the offsets that are missing there. If an offset is in both and differs, the interpreter is unknown.

use memhook_abi::{NO_OFFSET, python_entry, python_instruction, python_lines};

/// Offsets in bytes in `_PyRuntime`, and in the structures that it points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offsets {
    /// `autoTSSkey` in `_PyRuntime`.
    pub key: u64,
    /// `interpreters.head` in `_PyRuntime`; `interpreters.main` is the next word.
    pub interpreters: u64,
    /// Word in `_PyRuntime` with the thread state that holds the lock.
    pub holder: u64,
    /// Integer in `_PyRuntime` that is nonzero while the lock is held. The offset is 0 in versions in which the word
    /// above is 0 while the lock is free.
    pub locked: u64,
    /// List of thread states in an interpreter.
    pub threads: u64,
    /// In a thread state: the next thread state, the interpreter, and the `pthread_self()` of the thread.
    pub next: u64,
    pub interpreter: u64,
    pub thread: u64,
    /// As in [`memhook_abi::PythonLayout`].
    pub frame: u32,
    pub frame_in: u32,
    pub frame_code: u32,
    pub frame_previous: u32,
    pub frame_instruction: u32,
    pub frame_entry: u32,
    pub entry_kind: u32,
    pub instruction_kind: u32,
    pub lines: u32,
    pub code_name: u32,
    pub code_file: u32,
    pub code_first_line: u32,
    pub code_lines: u32,
    pub code_instructions: u32,
    pub text_ascii: u32,
    pub text_other: u32,
    pub code_version: u32,
}

/// Offsets of the oldest version; later versions modify them.
const PYTHON_3_8: Offsets = Offsets {
    key: 1392,
    interpreters: 32,
    holder: 1368,
    locked: 0,
    threads: 8,
    next: 8,
    interpreter: 16,
    thread: 176,
    frame: 24,
    frame_in: NO_OFFSET,
    frame_code: 32,
    frame_previous: 24,
    frame_instruction: 104,
    frame_entry: NO_OFFSET,
    entry_kind: python_entry::EVERY,
    instruction_kind: python_instruction::BYTE,
    lines: python_lines::INCREMENTS,
    code_name: 112,
    code_file: 104,
    code_first_line: 40,
    code_lines: 120,
    code_instructions: 0,
    text_ascii: 48,
    text_other: 72,
    code_version: NO_OFFSET,
};

const PYTHON_3_9: Offsets = Offsets {
    key: 584,
    holder: 568,
    ..PYTHON_3_8
};

const PYTHON_3_10: Offsets = Offsets {
    frame_instruction: 96,
    instruction_kind: python_instruction::UNIT,
    lines: python_lines::RANGES,
    ..PYTHON_3_9
};

const PYTHON_3_11: Offsets = Offsets {
    key: 592,
    interpreters: 40,
    holder: 576,
    threads: 16,
    thread: 152,
    frame: 56,
    frame_in: 8,
    frame_previous: 48,
    frame_instruction: 56,
    frame_entry: 68,
    entry_kind: python_entry::MARKED,
    instruction_kind: python_instruction::POINTER,
    lines: python_lines::LOCATIONS,
    // The qualified name.
    code_name: 128,
    code_file: 112,
    code_first_line: 72,
    code_lines: 136,
    code_instructions: 184,
    ..PYTHON_3_10
};

const PYTHON_3_12: Offsets = Offsets {
    key: 1544,
    holder: 77_440,
    locked: 77_448,
    threads: 72,
    thread: 136,
    frame_in: 0,
    frame_code: 0,
    frame_previous: 8,
    frame_entry: 70,
    entry_kind: python_entry::BETWEEN,
    code_first_line: 68,
    code_instructions: 192,
    text_ascii: 40,
    text_other: 56,
    code_version: 92,
    ..PYTHON_3_11
};

const PYTHON_3_13: Offsets = Offsets {
    key: 2160,
    interpreters: 632,
    holder: 96_112,
    locked: 96_120,
    threads: 7_344,
    thread: 152,
    frame: 72,
    frame_in: NO_OFFSET,
    code_instructions: 200,
    ..PYTHON_3_12
};

const PYTHON_3_14: Offsets = Offsets {
    key: 2336,
    interpreters: 808,
    holder: 98_544,
    locked: 98_552,
    frame_entry: 74,
    code_instructions: 208,
    ..PYTHON_3_13
};

/// Returns the offsets of version 3.`minor`.
pub(super) fn offsets(minor: u32) -> Option<Offsets> {
    Some(match minor {
        8 => PYTHON_3_8,
        9 => PYTHON_3_9,
        10 => PYTHON_3_10,
        11 => PYTHON_3_11,
        12 => PYTHON_3_12,
        13 => PYTHON_3_13,
        14 => PYTHON_3_14,
        _ => return None,
    })
}

/// Returns the words at the beginning of `_PyRuntime`, from 3.13 on, with their required values.
pub(super) fn described(minor: u32, offsets: &Offsets) -> [(usize, u64); 15] {
    let word = u64::from;
    // In the order of `_Py_DebugOffsets`: in a thread state, in a frame, in a code object. 3.14 has more fields before
    // each.
    let (in_state, in_frame, in_code) = match minor {
        13 => (21, 29, 35),
        _ => (24, 32, 40),
    };
    [
        // Not free-threaded; the runtime's own fields follow.
        (2, 0),
        (5, offsets.interpreters),
        (9, offsets.threads),
        (in_state, offsets.next),
        (in_state + 1, offsets.interpreter),
        (in_state + 2, word(offsets.frame)),
        (in_state + 3, offsets.thread),
        (in_frame, word(offsets.frame_previous)),
        (in_frame + 1, word(offsets.frame_code)),
        (in_frame + 2, word(offsets.frame_instruction)),
        (in_frame + 4, word(offsets.frame_entry)),
        (in_code, word(offsets.code_file)),
        (in_code + 2, word(offsets.code_name)),
        (in_code + 3, word(offsets.code_lines)),
        (in_code + 4, word(offsets.code_first_line)),
    ]
}
