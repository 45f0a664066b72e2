//! Pieces of code that call frame information describes.

use crate::Sections;
use crate::descriptions::each_description;
use gimli::{EhFrame, LittleEndian};
use std::ops::Range;

/// Code of one function, or of a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeRange {
    /// Addresses (svma).
    pub range: Range<u64>,
    /// True if the code is entered by the kernel or by a return instead of a call (augmentation `S`).
    pub is_signal_frame: bool,
}

/// Returns the code that `.eh_frame` describes, in address order. Skips parts that cannot be parsed.
pub fn code_ranges(sections: &Sections<'_>) -> Vec<CodeRange> {
    let mut frames = EhFrame::new(&sections.eh_frame, LittleEndian);
    frames.set_address_size(8);
    let mut found = Vec::new();
    each_description(&frames, &sections.bases, |fde| {
        let start = fde.initial_address();
        if let Some(end) = start.checked_add(fde.len()).filter(|&end| end > start) {
            found.push(CodeRange {
                range: start..end,
                is_signal_frame: fde.is_signal_trampoline(),
            });
        }
        true
    });
    found.sort_by_key(|found| (found.range.start, found.range.end));
    found
}
