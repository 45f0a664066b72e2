//! Commands that hold, trace or read live processes, and the code that they share.

pub mod advise;
pub mod agent;
pub mod attach;
pub mod audit;
mod copy_limits;
pub mod demo;
pub mod detach;
pub mod doctor;
pub mod emit;
mod ending;
pub mod gate;
mod looks;
pub mod mark;
mod model;
pub mod probe;
mod read_only;
mod record;
mod report_job;
pub mod rss;
pub mod run;
pub mod scan;
mod scored_trace;
pub mod sdk;
pub mod signals;
pub mod stale;
pub mod top;
mod trace_config;
mod triggered;
pub mod trim;
pub mod watch;

pub use memhook_attach::finish_keeping_tables as finish;
