//! Another processor: programs for AArch64, and a machine with Debian's kernel that runs them, emulated as a whole.
//!
//! An emulator of single programs (`qemu-aarch64`) has no ptrace(2) and no page tables of its own, so it cannot show
//! how a command works on a live process.

mod building;
mod machine;
mod root;

pub use building::{build_command, build_for_glibc, build_for_musl, missing_tools};
pub use machine::{Ended, Machine};
