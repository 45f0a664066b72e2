//! Code outside files, presented as modules and frames of call stacks: Python functions, and code
//! generated at run time.

use crate::{Frame, Location, ModuleFile, NamedCode};
use memhook_abi::PYTHON_FRAME;
use std::sync::Arc;

/// Pseudo-module for Python functions.
pub const PYTHON: &str = "python";

/// Returns the pseudo-module for Python frames.
pub fn python_module(names: Arc<dyn NamedCode>) -> ModuleFile {
    ModuleFile {
        path: PYTHON.to_owned(),
        start: PYTHON_FRAME,
        end: u64::MAX,
        named_by: Some(names),
        ..ModuleFile::default()
    }
}

/// Returns the pseudo-module of all addresses outside other modules. It must come last, because the
/// first match counts.
pub fn made_module(names: Arc<dyn NamedCode>) -> ModuleFile {
    ModuleFile {
        path: "made at run time".to_owned(),
        end: PYTHON_FRAME,
        named_by: Some(names),
        ..ModuleFile::default()
    }
}

/// Returns a Python function as a frame.
pub fn python_frame(function: String, file: String, line: Option<u32>) -> Location {
    Location {
        module: Some(PYTHON.to_owned()),
        svma: 0,
        frames: vec![Frame {
            function: Some(function),
            file: Some(file),
            line,
            inlined: false,
        }],
    }
}
