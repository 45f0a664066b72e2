//! Facts that the kernel gives about a process, and work on our own memory: no thread is stopped for any of it.

pub(crate) mod address_space;
pub(crate) mod huge_pages;
pub(crate) mod pace;
pub(crate) mod page_scan;
pub(crate) mod robust_list;
pub(crate) mod watchable;
