//! What is in no file, as modules and frames of call stacks: Python functions, and code that was made at run time.

use memhook_abi::PYTHON_FRAME;
use memhook_stream::Region;
use memhook_symbols::{Frame, Location, ModuleFile, NamedCode};
use std::sync::Arc;

/// What stands in the place of a module for Python functions.
pub const PYTHON: &str = "python";

/// The module that the addresses of Python functions are in.
pub fn python_module(names: Arc<dyn NamedCode>) -> ModuleFile {
    ModuleFile {
        path: PYTHON.to_owned(),
        start: PYTHON_FRAME,
        end: u64::MAX,
        named_by: Some(names),
        ..ModuleFile::default()
    }
}

/// The Python functions on the backtraces of a trace.
pub fn python_of(region: Arc<Region>) -> ModuleFile {
    python_module(Arc::new(OfRegion(region)))
}

struct OfRegion(Arc<Region>);

impl NamedCode for OfRegion {
    fn location(&self, return_address: u64) -> Option<Location> {
        let found = self.0.python_location(return_address)?;
        Some(python_frame(found.function, found.file, found.line))
    }
}

/// All addresses that are in no other module. The last of the modules, because the first one counts.
pub fn made_module(names: Arc<dyn NamedCode>) -> ModuleFile {
    ModuleFile {
        path: "made at run time".to_owned(),
        end: PYTHON_FRAME,
        named_by: Some(names),
        ..ModuleFile::default()
    }
}

/// A Python function as a frame.
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
