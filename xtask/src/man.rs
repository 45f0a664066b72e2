//! `cargo xtask man`: writes the man pages from the definitions of the options.

use memhook_tests::binary;
use std::{
    path::PathBuf,
    process::{Command, ExitCode},
};

#[derive(clap::Args)]
pub struct Args {
    /// Output directory
    directory: PathBuf,
}

pub fn run(args: &Args) -> ExitCode {
    // Only the binary knows all of its options.
    let status = Command::new(binary())
        .arg("man")
        .arg(&args.directory)
        .status();
    if status.expect("memhook-rs was built").success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
