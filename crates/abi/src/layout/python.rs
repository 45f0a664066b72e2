//! Where a CPython interpreter keeps the frames of its threads.

use super::shared_struct::shared_struct;

/// Values of [`PythonLayout::state`].
pub mod python_state {
    /// Python frames are not looked for.
    pub const OFF: u32 = 0;
    /// The layout is known by the interpreter's version only: every word is read through the kernel,
    /// which answers EFAULT where a load would fault.
    pub const CAREFUL: u32 = 1;
    /// The attacher has found the frames of this interpreter with the layout: a thread that holds the
    /// interpreter's lock reads them itself, as the interpreter does.
    pub const DIRECT: u32 = 2;
}

/// Values of [`PythonLayout::lines`].
pub mod python_lines {
    /// `co_lnotab` of 3.8 and 3.9: pairs of an address increment and a signed line increment.
    pub const INCREMENTS: u32 = 0;
    /// `co_linetable` of 3.10: as before, but a line is that of the addresses before its end (PEP 626).
    pub const RANGES: u32 = 1;
    /// `co_linetable` since 3.11: entries with columns (Objects/locations.md).
    pub const LOCATIONS: u32 = 2;
}

/// Values of [`PythonLayout::instruction_kind`].
pub mod python_instruction {
    /// A signed 32-bit offset in bytes.
    pub const BYTE: u32 = 0;
    /// A signed 32-bit offset in units of two bytes.
    pub const UNIT: u32 = 1;
    /// A pointer into the code object's instructions.
    pub const POINTER: u32 = 2;
}

/// Values of [`PythonLayout::entry_kind`].
pub mod python_entry {
    /// Each frame has a call of the evaluation function of its own.
    pub const EVERY: u32 = 0;
    /// A byte at [`PythonLayout::frame_entry`](super::PythonLayout) that is not 0 says so of a frame.
    pub const MARKED: u32 = 1;
    /// A byte there of at least 3 says that the frame is no function's, but stands between two calls of
    /// the evaluation function.
    pub const BETWEEN: u32 = 2;
}

/// No such offset.
pub const NO_OFFSET: u32 = u32::MAX;
/// Bytes of a frame that the hook looks at, at most.
pub const PYTHON_FRAME_BYTES: usize = 128;
/// Bytes of a code object that the hook looks at, at most.
pub const PYTHON_CODE_BYTES: usize = 256;
/// Keys of thread-specific data that lie in the TCB itself.
pub const PYTHON_KEYS: u32 = 32;

/// In an interned backtrace: this frame is a Python function, whose location is the rest.
pub const PYTHON_FRAME: u64 = 1 << 63;
/// The outermost Python frame of one call of the evaluation function.
pub const PYTHON_LAST: u64 = 1 << 32;
/// In an interned backtrace: it belongs to the native one whose id is the rest.
pub const PYTHON_NATIVE: u64 = 3 << 62;
/// In place of the function id, in the entry of a location.
pub const PYTHON_LOCATION: u8 = 255;
/// Most bytes of a function's name.
pub const PYTHON_NAME_BYTES: usize = 240;
/// Most bytes of a file's name.
pub const PYTHON_FILE_BYTES: usize = 700;
/// Where a ring's thread keeps the locations that it has seen, 64 bytes each.
pub const PYTHON_CACHE_OFFSET: usize = 45_056;
/// How many of them, a power of two.
pub const PYTHON_CACHE_ENTRIES: usize = 256;
/// Where a ring's thread keeps whole chains of Python frames with their backtraces. Only a thread with large caches
/// of a process that has an interpreter uses it.
pub const PYTHON_CHAINS_OFFSET: usize = 1 << 18;
/// How many of them, a power of two.
pub const PYTHON_CHAINS: usize = 64;
/// Bytes of one.
pub const PYTHON_CHAIN_BYTES: usize = 1_024;
shared_struct! {
    /// All that the hook has to know of the interpreter. Addresses are avma, offsets in bytes.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    guide PythonLayout {
        /// [`python_state`]; the attacher may change it while the hook looks.
        state: u32,
        /// [`python_lines`].
        lines: u32,
        /// Of `Py_tss_t`, the key under which a thread finds its own state: int is_initialized, int key.
        key: u64,
        /// Of the word that points to the newest interpreter.
        interpreters: u64,
        /// Of the word that points to the main interpreter. Where there are others, a thread's key names
        /// one of its states only.
        main_interpreter: u64,
        /// Of the word that points to the state which has, or had last, the interpreter's lock; 0: not known.
        holder: u64,
        /// Of an int that is 1 while somebody has the lock; 0: the holder's word is 0 otherwise.
        locked: u64,
        /// `PyCode_Type`.
        code_type: u64,
        /// `PyUnicode_Type`.
        text_type: u64,
        /// `PyBytes_Type`.
        bytes_type: u64,
        /// The code of the function that evaluates Python functions: where it begins.
        evaluation: u64,
        /// Where that ends.
        evaluation_end: u64,
        /// From the thread pointer to the value of key 0 of the thread-specific data; 16 bytes a key.
        key_values: u32,
        /// In a thread's state: its innermost frame, or, with `frame_in`, what has that.
        frame: u32,
        /// In what `frame` points to: the innermost frame; or [`NO_OFFSET`].
        frame_in: u32,
        /// In a frame: the code object.
        frame_code: u32,
        /// In a frame: its caller's.
        frame_previous: u32,
        /// In a frame: the instruction that is being executed.
        frame_instruction: u32,
        /// In a frame: the byte of `entry_kind`.
        frame_entry: u32,
        /// [`python_entry`].
        entry_kind: u32,
        /// [`python_instruction`].
        instruction_kind: u32,
        /// In a code object: its name.
        code_name: u32,
        /// In a code object: the file's name.
        code_file: u32,
        /// In a code object: its first line, an int.
        code_first_line: u32,
        /// In a code object: its lines.
        code_lines: u32,
        /// In a code object: its instructions.
        code_instructions: u32,
        /// In a text of ASCII characters: the characters.
        text_ascii: u32,
        /// In any other text.
        text_other: u32,
        /// In a code object: its number, an unsigned int that no other one had; or [`NO_OFFSET`]. 0: it has none.
        code_version: u32,
        /// Not used.
        unused: u32,
    }
}

const _: () = assert!(1 + (PYTHON_NAME_BYTES + PYTHON_FILE_BYTES) / 8 + 2 <= super::MAX_DEPTH);
