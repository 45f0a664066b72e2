//! Compile .eh_frame into compact unwind tables.
