//! Facts about a process before it is touched: its modules and C library, the needs of the hook, and limits that an
//! attach could exceed.

pub(crate) mod known_files;
pub(crate) mod limits;
pub(crate) mod memory_allowance;
pub(crate) mod process;
pub(crate) mod target_facts;
pub(crate) mod traced_modules;
