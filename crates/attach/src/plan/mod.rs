//! Preview of an attach: what it would patch and refuse, and how well the process could be traced. Changes nothing.

pub(crate) mod diagnosis;
pub(crate) mod hooking;
pub(crate) mod safe_thread;
pub mod touches;
