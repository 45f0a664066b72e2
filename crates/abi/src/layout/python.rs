//! Layout of a CPython interpreter's frames.

use super::shared_struct::shared_struct;

/// Values of [`PythonLayout::state`].
pub mod python_state {
    /// The hook does not search for Python frames.
    pub const OFF: u32 = 0;
    /// The layout is known only from the interpreter's version. Every word is read through the kernel, which returns
    /// EFAULT where a load would fault.
    pub const CAREFUL: u32 = 1;
    /// The attacher has verified the layout on frames of this interpreter: a thread that holds the interpreter's lock
    /// reads them directly, like the interpreter.
    pub const DIRECT: u32 = 2;
}

/// Values of [`PythonLayout::lines`].
pub mod python_lines {
    /// `co_lnotab` of 3.8 and 3.9: pairs of an address increment and a signed line increment.
    pub const INCREMENTS: u32 = 0;
    /// `co_linetable` of 3.10: like the table above, except that a line applies to the addresses before its end (PEP
    /// 626).
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
    /// Each frame has its own evaluation call.
    pub const EVERY: u32 = 0;
    /// A nonzero byte at [`PythonLayout::frame_entry`](super::PythonLayout) marks a frame with its own evaluation call.
    pub const MARKED: u32 = 1;
    /// A byte of at least 3 at that offset marks a frame that belongs to no function and separates two calls of the
    /// evaluation function.
    pub const BETWEEN: u32 = 2;
}

/// Value of a missing offset.
pub const NO_OFFSET: u32 = u32::MAX;
/// Maximum number of bytes of a frame that the hook reads.
pub const PYTHON_FRAME_BYTES: usize = 128;
/// Maximum number of bytes of a code object that the hook reads.
pub const PYTHON_CODE_BYTES: usize = 256;
/// Number of keys of thread-specific data that are in the TCB itself.
pub const PYTHON_KEYS: u32 = 32;

/// Bit of a frame in an interned backtrace: the frame is a Python function, and the other bits are its location.
pub const PYTHON_FRAME: u64 = 1 << 63;
/// Bit of the outermost Python frame of one call of the evaluation function.
pub const PYTHON_LAST: u64 = 1 << 32;
/// Bits in an interned backtrace: it belongs to the native backtrace whose id is in the other bits.
pub const PYTHON_NATIVE: u64 = 3 << 62;
/// Value in place of the function id in an entry that is a location.
pub const PYTHON_LOCATION: u8 = 255;
/// Maximum length of a function's name in bytes.
pub const PYTHON_NAME_BYTES: usize = 240;
/// Maximum length of a file's name in bytes.
pub const PYTHON_FILE_BYTES: usize = 700;
/// Offset of the locations that a ring's thread has seen, 64 bytes each.
pub const PYTHON_CACHE_OFFSET: usize = 45_056;
/// Number of these locations, a power of two.
pub const PYTHON_CACHE_ENTRIES: usize = 256;
/// Offset of a ring's cache of whole chains of Python frames with their backtraces. Only a thread with large caches in
/// a process with an interpreter uses it.
pub const PYTHON_CHAINS_OFFSET: usize = 1 << 18;
/// Number of these chains, a power of two.
pub const PYTHON_CHAINS: usize = 64;
/// Bytes of one chain.
pub const PYTHON_CHAIN_BYTES: usize = 1_024;
shared_struct! {
    /// The hook's facts about the interpreter. Addresses are avma, offsets in bytes.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    guide PythonLayout {
        /// State: see [`python_state`]; the attacher may change it while the hook runs.
        state: u32,
        /// Line table: see [`python_lines`].
        lines: u32,
        /// Address of `Py_tss_t`, the key under which a thread finds its own state: int is_initialized, int key.
        key: u64,
        /// Address of the word that points to the newest interpreter.
        interpreters: u64,
        /// Address of the word that points to the main interpreter. If there are other interpreters, a thread's key
        /// leads to only one of the thread's states.
        main_interpreter: u64,
        /// Address of the word that points to the thread state that has, or had last, the interpreter's lock; 0 if
        /// unknown.
        holder: u64,
        /// Address of an int that is 1 while a thread has the lock. 0 if there is no need for it, because the holder's
        /// word is 0 while no thread has the lock.
        locked: u64,
        /// Address of `PyCode_Type`.
        code_type: u64,
        /// Address of `PyUnicode_Type`.
        text_type: u64,
        /// Address of `PyBytes_Type`.
        bytes_type: u64,
        /// Start of the function that evaluates Python functions.
        evaluation: u64,
        /// End of that function.
        evaluation_end: u64,
        /// Offset from the thread pointer to the value of key 0 of the thread-specific data; 16 bytes a key.
        key_values: u32,
        /// In a thread's state: its innermost frame, or, with `frame_in`, the object that has it.
        frame: u32,
        /// In the object at `frame`: the innermost frame; or [`NO_OFFSET`].
        frame_in: u32,
        /// In a frame: the code object.
        frame_code: u32,
        /// In a frame: its caller's frame.
        frame_previous: u32,
        /// In a frame: the current instruction.
        frame_instruction: u32,
        /// In a frame: the byte of `entry_kind`.
        frame_entry: u32,
        /// Mark of a frame with its own evaluation call: see [`python_entry`].
        entry_kind: u32,
        /// Form of the current instruction: see [`python_instruction`].
        instruction_kind: u32,
        /// In a code object: its name.
        code_name: u32,
        /// In a code object: the name of the file.
        code_file: u32,
        /// In a code object: its first line, an int.
        code_first_line: u32,
        /// In a code object: its lines.
        code_lines: u32,
        /// In a code object: its instructions.
        code_instructions: u32,
        /// In a text of ASCII characters: the characters.
        text_ascii: u32,
        /// In any other text: the characters.
        text_other: u32,
        /// In a code object: its unique number, an unsigned int, or 0 if it has no number. [`NO_OFFSET`] if there is no
        /// such field.
        code_version: u32,
        /// Unused.
        unused: u32,
    }
}

const _: () = assert!(1 + (PYTHON_NAME_BYTES + PYTHON_FILE_BYTES) / 8 + 2 <= super::MAX_DEPTH);
