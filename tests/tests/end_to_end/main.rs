//! Tests of the real binary on real targets, with exact numbers; one folder for each subject.
//!
//! All tests are in one program. Linking a program for each file took longer than most of them ran,
//! and left a processor idle at the end of each. `cargo test -p memhook-tests --test end_to_end
//! gate::` runs the tests of one folder.

// Provides the `#[test]` that lets a test pass if its requirements are not installed.
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
