//! Maps an address to its module, function, file:line and inlined frames.
//!
//! The caller provides the modules as they are mapped ([`ModuleFile`]: bounds, build-id, and either
//! the file's bytes or paths to read it from) and, for separate debug files, the file system roots
//! to search. No process is needed, so a recording can also be resolved on another machine. With
//! [`Debuginfod`] in [`SearchPath`], missing debug files are downloaded.
//!
//! The sources of a module's names, best first, are: DWARF in the file; DWARF in a separate debug
//! file, found by build-id (`/usr/lib/debug/.build-id/xx/yyy.debug`) or by `.gnu_debuglink`, with
//! the supplementary file that `dwz` makes; `.symtab` of either, or of the file in
//! `.gnu_debugdata`; `.dynsym`. A file that is neither the mapped one nor its debug file is refused
//! ([`SymbolError`]), so names are never guesses.
//!
//! Only requested addresses are looked up. Each module has a separate thread, which starts with the
//! module's first address and keeps its parsed data. So modules are processed in parallel, and the
//! next report is cheap. [`Symbolizer::request`] does not wait.
//!
//! Resolved names can be taken to another machine as a [`Bundle`], and are stored for the next run
//! in a [`SymbolCache`].
//!
//! Units of split DWARF are read on demand, from a package next to the program (`.dwp`) or from the
//! `.dwo` files that it names. If they are gone, code of these units gets function names from the
//! symbol table and lines from the skeletons.

// The crate is linked for its `#[test]`, which lets a test pass if it needs a program that is not
// installed.
#[cfg(test)]
#[macro_use]
extern crate memhook_tests;

mod bundle;
mod cache;
mod constructors;
mod debug_files;
mod debuginfod;
mod declared;
mod error;
mod file;
mod files;
mod fingerprint;
mod functions;
mod host_names;
mod inlined;
mod jit_dump;
mod lambdas;
mod lookup;
mod mini_debug_info;
mod outside_files;
mod perf_map;
mod readers;
mod run_names;
mod segments;
mod split;
mod symbol_table;
mod symbolizer;
mod worker;

pub use bundle::{Bundle, BundleError};
pub use cache::SymbolCache;
pub use constructors::Constructors;
pub use debug_files::SearchPath;
pub use debuginfod::{Debuginfod, TimeLimits};
pub use declared::{
    DeclaredFiles, DeclaredKind, DeclaredSections, DeclaredType, DeclaredTypes, DeclaredVariable,
    Field, TypeId, TypeRef, TypesUnread,
};
pub use error::SymbolError;
pub use functions::{FunctionSymbol, functions};
pub use host_names::Getent;
pub use inlined::inlined_at;
pub use jit_dump::JitDump;
pub use memhook_foreign::demangle;
pub use outside_files::{PYTHON, made_module, python_frame, python_module};
pub use perf_map::{PerfMap, made_frame};
pub use readers::SharedReaders;
pub use run_names::RunNames;
pub use symbolizer::Symbolizer;

use serde::{Deserialize, Serialize};
use std::{fs::File, path::PathBuf, sync::Arc};

/// A loaded module.
#[derive(Clone, Default)]
pub struct ModuleFile {
    /// Path as the target sees it.
    pub path: String,
    /// Bytes of the mapped file, if available. By now, the path may lead to a different file.
    pub image: Option<Arc<Vec<u8>>>,
    /// The mapped file, if it is open.
    pub opened: Option<Arc<File>>,
    /// Other paths of the file. The first one with the right build-id is used.
    pub candidates: Vec<PathBuf>,
    /// GNU build-id of the mapped file.
    pub build_id: Option<Vec<u8>>,
    /// Load bias: avma = base + svma.
    pub base: u64,
    /// First address (avma).
    pub start: u64,
    /// Past the last address (avma).
    pub end: u64,
    /// Source of names for code that is not in a file: whatever generates the code, or a stand-in
    /// for it.
    pub named_by: Option<Arc<dyn NamedCode>>,
}

/// Names of code outside files: functions of an interpreter, or code made at run time.
pub trait NamedCode: Send + Sync {
    /// Returns the known facts about a return address.
    fn location(&self, return_address: u64) -> Option<Location>;
}

/// One source-level frame at an address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// Demangled function.
    pub function: Option<String>,
    /// Source file.
    pub file: Option<String>,
    /// Line.
    pub line: Option<u32>,
    /// True if it was inlined into the following frame.
    pub inlined: bool,
}

/// Known facts about an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// File name of the module.
    pub module: Option<String>,
    /// Address in the module's file (svma).
    pub svma: u64,
    /// Frames, innermost first; empty if nothing is known.
    pub frames: Vec<Frame>,
}

/// Source of a module's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// No file could be read.
    #[default]
    Nothing,
    /// Names to which other modules bind (`.dynsym`).
    DynamicSymbols,
    /// A full symbol table (`.symtab`).
    Symbols,
    /// DWARF, which also provides files, lines and inlined functions.
    DebugInfo,
}

/// Result of reading a module.
#[derive(Debug, Default)]
pub struct ModuleSymbols {
    /// Path as the target sees it.
    pub path: String,
    /// Best source of names that was found.
    pub source: Source,
    /// Separate debug file in use.
    pub debug_file: Option<PathBuf>,
    /// Reasons why files could not be read or were refused.
    pub problems: Vec<SymbolError>,
}
