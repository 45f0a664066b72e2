//! Facts that the kernel provides about a process, and work on our own memory. None of this stops a thread.

pub(crate) mod address_space;
pub(crate) mod huge_pages;
pub(crate) mod pace;
pub(crate) mod page_scan;
pub(crate) mod robust_list;
pub(crate) mod watchable;
