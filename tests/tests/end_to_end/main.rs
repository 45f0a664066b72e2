//! Tests of the real binary on real targets, with exact numbers, in one folder per subject.
//!
//! All tests are in one program, because linking a program for each file would take longer than
//! running most of them, and would leave a processor idle at the end of each.
//! `cargo test -p memhook-tests --test end_to_end gate::` runs the tests of one folder.

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
