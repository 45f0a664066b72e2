//! Another architecture: programs for AArch64, and a fully emulated machine with Debian's kernel that runs them.
//!
//! A user-mode emulator (`qemu-aarch64`) has no ptrace(2) and no page tables, so it cannot show how a command works on
//! a live process.

mod building;
mod machine;
mod root;

pub use building::{build_command, build_for_glibc, build_for_musl, missing_tools};
pub use machine::{Ended, Machine};
