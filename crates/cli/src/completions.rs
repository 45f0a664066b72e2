//! `completions` and `man`: files that a package ships with the binary, generated from the option
//! definitions.

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Options of `completions`.
#[derive(clap::Args)]
pub struct CompletionsArgs {
    /// Shell to write the script for
    shell: Shell,
}

/// Options of `man`.
#[derive(clap::Args)]
pub struct ManArgs {
    /// Directory for the pages, which is created if it does not exist
    directory: PathBuf,
}

/// Prints the script that completes commands and options.
pub fn completions(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut command = crate::Cli::command();
    let name = command.get_name().to_owned();
    // The script is written in one piece, because the generator panics if the reader has closed the
    // pipe.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    let script = String::from_utf8(script).context("the script is not text")?;
    let script = match_labels(&script);
    let _ = std::io::stdout().lock().write_all(script.as_bytes());
    Ok(ExitCode::SUCCESS)
}

/// Corrects the script for bash. In the labels of its branches, the generator treats the hyphen in
/// our name as the beginning of a command, but not in the words that it compares with them. Without
/// the correction, no command would be completed.
fn match_labels(script: &str) -> String {
    script.replace("memhook__subcmd__rs", "memhook__rs")
}

/// Writes one page for the program and one for each command.
pub fn man(args: &ManArgs) -> anyhow::Result<ExitCode> {
    let directory = &args.directory;
    let cannot_write = || format!("cannot write man pages into {}", directory.display());
    fs::create_dir_all(directory).with_context(cannot_write)?;
    let mut command = crate::Cli::command().disable_help_subcommand(true);
    // This fills in everything that subcommands inherit, including their full names.
    command.build();
    write_pages(&command, directory).with_context(cannot_write)?;
    Ok(ExitCode::SUCCESS)
}

fn write_pages(command: &clap::Command, directory: &Path) -> std::io::Result<()> {
    let man = clap_mangen::Man::new(command.clone());
    let mut page = Vec::new();
    man.render(&mut page)?;
    fs::write(directory.join(man.get_filename()), page)?;
    let commands = command.get_subcommands().filter(|c| !c.is_hide_set());
    for command in commands {
        write_pages(command, directory)?;
    }
    Ok(())
}
