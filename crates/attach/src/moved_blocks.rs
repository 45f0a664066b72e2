//! Which allocations are those of `realloc`, for observers that join what it has done to a block.

use crate::session::Session;
use memhook_abi::{HOOKED_FUNCTIONS, Role};
use memhook_ledger::{Blocks, Moves};
use memhook_stream::Region;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// The region of a trace that begins later than its observer.
#[derive(Clone, Default)]
pub struct LateRegion(Arc<OnceLock<Arc<Region>>>);

impl LateRegion {
    /// The trace has begun. To be called before its first event is taken.
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

/// An observer that joins reallocations and hands everything to `blocks`, and what it has to be told of the trace.
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
