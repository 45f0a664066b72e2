//! Previews an attach without changing anything: what it would patch and refuse, and how well the process could be
//! traced.

pub(crate) mod diagnosis;
pub(crate) mod hooking;
pub(crate) mod safe_thread;
pub mod touches;
