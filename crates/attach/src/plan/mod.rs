//! Preview of an attach: what it would patch, what it refuses, and how well the process would be seen. Nothing is
//! changed yet.

pub(crate) mod diagnosis;
pub(crate) mod hooking;
pub(crate) mod safe_thread;
pub mod touches;
