//! `gate`: judges the memory use of a program. It is made for scripts, so its exit code is the
//! verdict.

mod command;
mod judged;
pub mod limits;
pub mod options;
mod recorded;

pub use command::run;
pub use judged::Measure;
pub use options::Args;
