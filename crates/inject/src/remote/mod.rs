//! Operations in the target: system calls and function calls in a held thread, and access to memory
//! and descriptors.

pub(crate) mod access_marks;
pub(crate) mod call_to_its_end;
pub(crate) mod call_with_data;
pub(crate) mod code_area;
pub(crate) mod code_exchange;
pub(crate) mod descriptor;
pub(crate) mod forced_write;
pub(crate) mod guide;
pub(crate) mod kernel_places;
pub(crate) mod load;
pub(crate) mod map;
pub(crate) mod memory;
pub(crate) mod region;
pub(crate) mod remote_call;
pub(crate) mod remote_calls;
pub(crate) mod remote_fork;
pub(crate) mod remote_signals;
pub(crate) mod remote_syscall;
pub(crate) mod remote_work;
pub(crate) mod shown_name;
pub(crate) mod way_home;
pub(crate) mod write_watch;
