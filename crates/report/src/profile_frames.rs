//! Modules, frames and source lines of a profile.

use crate::StackFrame;
use serde::Serialize;

/// Name of the frame that represents the outermost frames of a cut stack.
pub const CUT_ROOT: &str = "\u{2026}";

/// A module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProfileModule {
    /// Path in the target.
    pub path: String,
    /// Build-id, hexadecimal; empty if it has none.
    pub build_id: String,
    /// First address of its mappings.
    pub start: u64,
    /// Address one past the last mapping.
    pub end: u64,
    /// Difference between an address in the process and the same address in the file.
    pub bias: u64,
}

impl ProfileModule {
    /// Returns the address of the call before a return address, in the module's file and in the
    /// form of symbol tables. Name lookups take an address unchanged, and a return address may
    /// already belong to the next line.
    pub(crate) fn call_in_file(&self, return_address: u64) -> u64 {
        return_address.wrapping_sub(1).wrapping_sub(self.bias)
    }

    /// Returns the start and the end of the module's mappings, as addresses in its file.
    pub(crate) fn range_in_file(&self) -> (u64, u64) {
        (
            self.start.wrapping_sub(self.bias),
            self.end.wrapping_sub(self.bias),
        )
    }
}

/// A frame.
#[derive(Clone, Debug, Serialize)]
pub struct ProfileFrame {
    /// Return address in the process.
    pub address: u64,
    /// Index of the frame's module.
    pub module: Option<u32>,
    /// Function and place in the source.
    pub frame: StackFrame,
}

impl ProfileFrame {
    /// Returns the frame that represents missing frames.
    pub fn cut_root() -> ProfileFrame {
        ProfileFrame {
            address: 0,
            module: None,
            frame: StackFrame {
                address: "0x0".into(),
                module: None,
                offset: None,
                function: Some(CUT_ROOT.into()),
                file: None,
                line: None,
                inlined: false,
            },
        }
    }
}

/// Some lines of a source file.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SourceLines {
    /// Path, as in frames.
    pub file: String,
    /// Line number of the first line.
    pub first: u32,
    /// The lines.
    pub lines: Vec<String>,
}
