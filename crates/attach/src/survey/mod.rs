//! Facts about a process before anything of it is touched: its modules and its C library, what the hook needs, and
//! limits that an attach could run into.

pub(crate) mod known_files;
pub(crate) mod limits;
pub(crate) mod memory_allowance;
pub(crate) mod process;
pub(crate) mod target_facts;
pub(crate) mod traced_modules;
