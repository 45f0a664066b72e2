//! Attaching, tracing and leaving: targets of every kind, and what could harm them.

mod address_space;
mod attachers;
mod attachers_as_targets;
mod blocked_calls;
mod containers;
mod endings;
mod exact;
mod forbidding;
mod functions;
mod gaps;
mod hostile_files;
mod job_control;
<<<<<<< HEAD
mod locked_memory;
=======
mod leaders;
>>>>>>> 84793d71e88c1bdd1bcf8916143a920ae366ddb2
mod mapped_hook;
mod max_memory;
mod memory;
mod modules;
mod namespaces;
mod order;
mod plugin_hosts;
mod real_programs;
mod residue;
mod reused_ids;
mod safe_places;
mod seccomp;
mod signals;
mod stalled;
mod static_programs;
mod storm;
mod threads;
mod toolkit;
mod ways_out;
