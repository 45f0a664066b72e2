//! Names of Python functions, which the hook has written into the region.

use memhook_stream::Region;
use memhook_symbols::{Location, NamedCode, python_frame};
use std::sync::Arc;

/// Python names of a trace.
pub(super) struct PythonOf(pub Arc<Region>);

impl NamedCode for PythonOf {
    fn location(&self, return_address: u64) -> Option<Location> {
        let found = self.0.python_location(return_address)?;
        Some(python_frame(found.function, found.file, found.line))
    }
}
