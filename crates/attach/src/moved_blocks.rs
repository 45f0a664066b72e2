//! Identifies allocations by `realloc`, for observers that link the reallocations of a block.

use crate::session::Session;
use memhook_abi::{HOOKED_FUNCTIONS, Role};
use memhook_ledger::{Blocks, Moves};
use memhook_stream::Region;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// Region of a trace that begins after its observer was created.
#[derive(Clone, Default)]
pub struct LateRegion(Arc<OnceLock<Arc<Region>>>);

impl LateRegion {
    /// Sets the region. Call it before the first event is taken.
    pub fn set(&self, session: &Session) {
        let _ = self.0.set(Arc::clone(session.shared_region()));
    }

    fn is_realloc(&self, stack: u32) -> bool {
        let stack = self.0.get().and_then(|region| region.stack(stack));
        let function = stack.map(|stack| usize::from(stack.function));
        let function = function.and_then(|function| HOOKED_FUNCTIONS.get(function));
        function.is_some_and(|function| function.role == Role::Reallocates)
    }
}

/// Creates an observer that joins reallocations and passes everything to `blocks`. Also returns the handle that
/// receives the trace's region.
pub fn moves<B: Blocks>(blocks: B) -> (Moves<B>, LateRegion) {
    let region = LateRegion::default();
    let of_observer = region.clone();
    let mut known: HashMap<u32, bool> = HashMap::new();
    let is_realloc = move |stack| {
        *known
            .entry(stack)
            .or_insert_with(|| of_observer.is_realloc(stack))
    };
    (Moves::new(blocks, is_realloc), region)
}
