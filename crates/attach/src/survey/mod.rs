//! What is known of a process before anything of it is touched: facts that the hook needs, limits that an attach
//! could run into, and the files of its modules.

pub(crate) mod known_files;
pub(crate) mod limits;
pub(crate) mod memory_budget;
pub(crate) mod process_names;
pub(crate) mod target_facts;
