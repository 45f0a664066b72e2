//! The reason why a block is alive, as text.

use crate::{Document, Style};
use memhook_foreign::visible;
use memhook_heap::Why;
use std::fmt::Write;

impl Document for Why {
    fn text(&self, _: Style) -> String {
        why_text(self)
    }
}

/// Writes the root, and the blocks on the path from the root.
fn why_text(why: &Why) -> String {
    let mut out = match &why.root {
        Some(root) => format!("Kept alive by {}\n", visible(root)),
        None => "Nothing reaches it: leaked\n".to_owned(),
    };
    for step in &why.path {
        let _ = write!(
            out,
            "  -> {} ({} B, {})",
            step.address,
            step.bytes,
            visible(&step.kind)
        );
        if let Some(offset) = step.offset {
            let _ = write!(out, ", at offset {offset}:");
        }
        out.push('\n');
    }
    out
}
