//! Real targets, attached by the real binary, and exact numbers; a folder for each subject.
//!
//! All tests are in one program: linking one for each file took longer than most of them run, and a processor was
//! idle at the end of each. `cargo test -p memhook-tests --test end_to_end gate::` runs those of one folder.

// For its `#[test]`, which lets a test pass if its requirements are not installed.
#[macro_use]
extern crate memhook_tests;

mod accesses;
mod agent;
mod attach;
mod budgets;
mod children;
mod command;
mod gate;
mod heaps;
mod library;
mod probes;
mod recordings;
mod scan;
mod stacks;
mod truth;
