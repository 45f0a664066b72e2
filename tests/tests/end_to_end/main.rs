//! Real targets, attached by the real binary, and exact numbers; a folder for each subject.
//!
//! All are one program: half a minute of linking is saved for each minute that they would take as programs of
//! their own, and no processor waits for the last test of a file. `cargo test -p memhook-tests --test end_to_end gate::`
//! runs those of one folder.

mod accesses;
mod agent;
mod attach;
mod budgets;
mod children;
mod command;
mod gate;
mod heaps;
mod probes;
mod recordings;
mod scan;
mod stacks;
