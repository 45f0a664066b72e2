//! CPython interpreter of a process, seen from outside: its version, and the location of its frames.

mod layouts;

use crate::{CLibraryKind, ModuleImage, RemoteAddress, read_memory, read_word};
use layouts::{Offsets, described, offsets};
use memhook_abi::{NO_OFFSET, PYTHON_KEYS, PythonLayout, python_entry, python_state};
use std::ops::Range;

/// Function that evaluates Python functions.
pub(crate) const EVALUATION: &str = "_PyEval_EvalFrameDefault";
/// Variables of the interpreter that lead to all other data.
pub(crate) const VARIABLES: [&str; 5] = [
    "_PyRuntime",
    "PyCode_Type",
    "PyUnicode_Type",
    "PyBytes_Type",
    "Py_Version",
];

/// Distance from the thread pointer to the value of key 0: `specific_1stblock` in glibc's `struct pthread`
/// (nptl/descr.h), whose offset has not changed on x86-64 since 2.3; each entry is a sequence number and the
/// value.
const KEY_VALUES: u32 = 0x318;
/// Maximum number of frames examined per thread, and of threads examined.
const MOST: usize = 1024;

/// Reason why no Python functions can be shown for a process with an interpreter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PythonError {
    /// The interpreter's version cannot be determined.
    #[error("the version of the interpreter is not known")]
    NoVersion,
    /// The interpreter's structures are unknown.
    #[error("the structures of Python {0} are not known (3.8 to 3.14 are)")]
    Version(String),
    /// The interpreter does not run on glibc.
    #[error("the interpreter runs on a C library other than glibc")]
    CLibrary,
    /// The interpreter does not export a symbol that leads to its frames.
    #[error("the interpreter does not export {0}")]
    NoSymbol(&'static str),
    /// The interpreter is built with other structures.
    #[error("the interpreter does not have the layout of Python {0}")]
    OtherLayout(String),
}

/// Result of examining the frames of a running interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The layout is correct: it leads to frames of Python functions.
    Right,
    /// There is no evidence yet.
    Unknown,
    /// Something disagrees with the layout.
    Wrong,
}

/// A CPython interpreter.
#[derive(Clone, Debug)]
pub struct Interpreter {
    /// Version, such as `3.11`.
    pub version: String,
    /// Layout for the hook.
    pub layout: PythonLayout,
    /// Code of the evaluation function (avma).
    pub evaluation: Range<u64>,
    /// True if its module is never unloaded.
    pub is_permanent: bool,
    offsets: Offsets,
}

impl Interpreter {
    /// Returns the interpreter of a process with these modules.
    pub fn of(
        pid: i32,
        modules: &[ModuleImage],
        c_library: Option<CLibraryKind>,
    ) -> Option<Result<Interpreter, PythonError>> {
        let has_runtime = |m: &&ModuleImage| m.facts.python.contains_key("_PyRuntime");
        let module = modules.iter().find(has_runtime)?;
        Some(Interpreter::in_module(pid, module, c_library))
    }

    fn in_module(
        pid: i32,
        module: &ModuleImage,
        c_library: Option<CLibraryKind>,
    ) -> Result<Interpreter, PythonError> {
        let avma = |svma: u64| module.base.wrapping_add(svma);
        let variable = |name: &'static str| {
            let found = module.facts.python.get(name);
            found
                .map(|found| avma(found.svma))
                .ok_or(PythonError::NoSymbol(name))
        };
        let minor = match module.facts.python.get("Py_Version") {
            // PY_VERSION_HEX: 0x030b02f0 is 3.11.2.
            Some(hex) => read_word(pid, RemoteAddress(avma(hex.svma)))
                .filter(|word| (word >> 24) as u8 == 3)
                .map(|word| u32::from((word >> 16) as u8)),
            None => minor_in(module.name()),
        };
        let minor = minor.ok_or(PythonError::NoVersion)?;
        let version = format!("3.{minor}");
        let offsets = offsets(minor).ok_or_else(|| PythonError::Version(version.clone()))?;
        if c_library != Some(CLibraryKind::Glibc) {
            return Err(PythonError::CLibrary);
        }
        let runtime = variable("_PyRuntime")?;
        if minor >= 13 && !describes_itself(pid, runtime, minor, &offsets) {
            return Err(PythonError::OtherLayout(version));
        }
        let evaluation = module.facts.exported(EVALUATION);
        let evaluation = evaluation.ok_or(PythonError::NoSymbol(EVALUATION))?;
        let at = |offset: u64| runtime.wrapping_add(offset);
        let locked = if offsets.locked == 0 {
            0
        } else {
            at(offsets.locked)
        };
        let start = avma(evaluation.svma);
        let end = start.wrapping_add(evaluation.size);
        let layout = PythonLayout {
            state: python_state::CAREFUL,
            lines: offsets.lines,
            key: at(offsets.key),
            interpreters: at(offsets.interpreters),
            main_interpreter: at(offsets.interpreters + 8),
            holder: at(offsets.holder),
            locked,
            code_type: variable("PyCode_Type")?,
            text_type: variable("PyUnicode_Type")?,
            bytes_type: variable("PyBytes_Type")?,
            evaluation: start,
            evaluation_end: end,
            key_values: KEY_VALUES,
            frame: offsets.frame,
            frame_in: offsets.frame_in,
            frame_code: offsets.frame_code,
            frame_previous: offsets.frame_previous,
            frame_instruction: offsets.frame_instruction,
            frame_entry: offsets.frame_entry,
            entry_kind: offsets.entry_kind,
            instruction_kind: offsets.instruction_kind,
            code_name: offsets.code_name,
            code_file: offsets.code_file,
            code_first_line: offsets.code_first_line,
            code_lines: offsets.code_lines,
            code_instructions: offsets.code_instructions,
            text_ascii: offsets.text_ascii,
            text_other: offsets.text_other,
            code_version: offsets.code_version,
            unused: 0,
        };
        Ok(Interpreter {
            version,
            layout,
            evaluation: start..end,
            is_permanent: module.is_permanent,
            offsets,
        })
    }

    /// Checks whether the frames of the process match the layout. The process may run meanwhile, so a mismatch may only
    /// be a change in progress, which a later check will not see.
    pub fn verify(&self, pid: i32) -> Verdict {
        let word = |address: u64| read_word(pid, RemoteAddress(address));
        let layout = &self.layout;
        let (Some(newest), Some(main), Some(key)) = (
            word(layout.interpreters),
            word(layout.main_interpreter),
            word(layout.key),
        ) else {
            return Verdict::Unknown;
        };
        let number = key >> 32;
        if main == 0 || newest != main || key as u32 != 1 {
            return Verdict::Unknown;
        }
        if number >= u64::from(PYTHON_KEYS) {
            return Verdict::Wrong;
        }
        let mut state = word(main.wrapping_add(self.offsets.threads)).unwrap_or(0);
        let mut best = Verdict::Unknown;
        for _ in 0..MOST {
            if state == 0 {
                break;
            }
            let field = |offset: u64| word(state.wrapping_add(offset));
            let value = field(self.offsets.thread).and_then(|thread| {
                word(thread.wrapping_add(u64::from(layout.key_values) + 16 * number))
            });
            if field(self.offsets.interpreter) != Some(main) {
                return Verdict::Wrong;
            }
            // A thread that is starting or ending has no such value.
            if value == Some(state) {
                match self.verify_frames(pid, state) {
                    Verdict::Wrong => return Verdict::Wrong,
                    Verdict::Right => best = Verdict::Right,
                    Verdict::Unknown => {}
                }
            }
            state = field(self.offsets.next).unwrap_or(0);
        }
        best
    }

    /// Checks the frames of one thread state.
    fn verify_frames(&self, pid: i32, state: u64) -> Verdict {
        let word = |address: u64| read_word(pid, RemoteAddress(address));
        let layout = &self.layout;
        let mut frame = word(state.wrapping_add(u64::from(layout.frame)));
        if layout.frame_in != NO_OFFSET {
            frame = frame
                .filter(|&at| at != 0)
                .and_then(|at| word(at.wrapping_add(u64::from(layout.frame_in))));
        }
        let mut found = Verdict::Unknown;
        for _ in 0..MOST {
            let Some(at) = frame.filter(|&at| at != 0) else {
                break;
            };
            let mut bytes = [0; memhook_abi::PYTHON_FRAME_BYTES];
            let last = [
                layout.frame_code,
                layout.frame_previous,
                layout.frame_instruction,
            ];
            let length = last.into_iter().max().unwrap_or(0) as usize + 8;
            let length = length.max(layout.frame_entry.wrapping_add(1) as usize);
            let Some(bytes) = bytes.get_mut(..length) else {
                return Verdict::Wrong;
            };
            if read_memory(pid, RemoteAddress(at), bytes).is_err() {
                return Verdict::Wrong;
            }
            let field = |offset: u32| {
                let bytes = &bytes[offset as usize..][..8];
                u64::from_le_bytes(bytes.try_into().unwrap_or_default())
            };
            frame = Some(field(layout.frame_previous));
            let is_between = layout.entry_kind == python_entry::BETWEEN
                && bytes[layout.frame_entry as usize] >= 3;
            if is_between {
                continue;
            }
            // Since 3.14 the lowest bits of the word show how the reference is counted.
            let code = field(layout.frame_code) & !7;
            let is = |object: Option<u64>, kind: u64| {
                object.is_some_and(|object| word(object.wrapping_add(8)) == Some(kind))
            };
            let part = |offset: u32| word(code.wrapping_add(u64::from(offset)));
            let is_code = is(Some(code), layout.code_type)
                && is(part(layout.code_name), layout.text_type)
                && is(part(layout.code_file), layout.text_type)
                && is(part(layout.code_lines), layout.bytes_type);
            if !is_code {
                return Verdict::Wrong;
            }
            found = Verdict::Right;
        }
        found
    }
}

/// Returns true if the interpreter's description of itself agrees.
fn describes_itself(pid: i32, runtime: u64, minor: u32, offsets: &Offsets) -> bool {
    let mut bytes = [0; 48 * 8];
    if read_memory(pid, RemoteAddress(runtime), &mut bytes).is_err() {
        return false;
    }
    let word = |n: usize| {
        let bytes = &bytes[n * 8..][..8];
        u64::from_le_bytes(bytes.try_into().unwrap_or_default())
    };
    bytes.starts_with(b"xdebugpy")
        && described(minor, offsets)
            .iter()
            .all(|&(n, value)| word(n) == value)
}

/// Returns the `11` of `python3.11` or `libpython3.11.so.1.0`.
fn minor_in(name: &str) -> Option<u32> {
    let version = name.split("python3.").nth(1)?;
    let digits = version.split(|c: char| !c.is_ascii_digit()).next()?;
    // Builds with other structures have letters after the number, such as `python3.9d`.
    let rest = &version[digits.len()..];
    let is_plain = rest.is_empty() || rest.starts_with(".so");
    digits.parse().ok().filter(|_| is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_in_names() {
        for (name, minor) in [
            ("python3.9", Some(9)),
            ("libpython3.10.so.1.0", Some(10)),
            ("libpython3.9d.so.1.0", None),
            ("python3", None),
            ("uwsgi", None),
        ] {
            assert_eq!(minor_in(name), minor, "{name}");
        }
    }
}
