//! `symbolize`: adds names to profiles that have addresses and build-ids only.

use crate::exit_code;
use crate::remedies;
use crate::report::sources;
use anyhow::{Context, bail};
use memhook_foreign::{OutputFile, check_output, open_regular, visible};
use memhook_report::{AddedNames, PprofNames, Progress, StoredPprof, counted};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Suffix of the names of profiles.
const END: &str = ".pb.gz";
/// Suffix of profiles with added names, if the user gives no other name.
const NAMED_END: &str = ".named.pb.gz";
/// Size limit of a file that is read.
const MOST_BYTES: u64 = 64 << 20;

/// Options of `symbolize`.
#[derive(clap::Args)]
pub struct Args {
    /// The profiles, in the format of pprof, or directories with files NAME.pb.gz
    #[arg(required = true, value_name = "PROFILE")]
    profiles: Vec<PathBuf>,
    /// Write to this file; with several profiles, into this directory
    ///
    /// Without it, NAME.pb.gz becomes NAME.named.pb.gz beside it.
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
    /// Overwrite files that exist
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    sources: sources::Args,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let profiles = profiles(&args.profiles)?;
    let is_directory = args.output.as_ref().is_some_and(|path| path.is_dir());
    if let (Some(output), false, 2..) = (&args.output, is_directory, profiles.len()) {
        bail!(
            "{} is not a directory, and {} profiles do not go into one file: make the directory, or leave -o out",
            output.display(),
            profiles.len()
        );
    }
    let mut names = PprofNames::new(sources::name_sources(&args.sources)?);
    let mut code = ExitCode::SUCCESS;
    for profile in &profiles {
        let output = match &args.output {
            Some(directory) if is_directory => {
                directory.join(profile.file_name().unwrap_or_default())
            }
            Some(file) => file.clone(),
            None => beside(profile),
        };
        // A profile that cannot be read does not affect the other profiles.
        match symbolize(profile, &output, args.force, &mut names) {
            Ok(added) => eprintln!("{}", line(&added, &output)),
            Err(error) => {
                let error = remedies::in_words(error.as_ref());
                eprintln!("memhook-rs: {}", visible(&error));
                code = ExitCode::from(exit_code::BAD_INPUT);
            }
        }
    }
    for problem in names.refused() {
        eprintln!("memhook-rs: not used: {problem}");
    }
    Ok(code)
}

/// Returns the named profiles, and the profiles in named directories.
fn profiles(named: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in named {
        if !path.is_dir() {
            found.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path);
        let entries = entries.with_context(|| format!("cannot read {}", path.display()))?;
        let mut inside: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        inside.retain(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.ends_with(END) && !name.ends_with(NAMED_END)
        });
        if inside.is_empty() {
            bail!("{} has no files that end in {END}", path.display());
        }
        inside.sort();
        found.extend(inside);
    }
    Ok(found)
}

fn beside(profile: &Path) -> PathBuf {
    let name = profile.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(END).unwrap_or(&name);
    profile.with_file_name(format!("{stem}{NAMED_END}"))
}

fn symbolize(
    path: &Path,
    output: &Path,
    force: bool,
    names: &mut PprofNames,
) -> anyhow::Result<AddedNames> {
    check_output(Some(output), force, [path])?;
    let read = || {
        let mut bytes = Vec::new();
        let file = open_regular(path)?;
        file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(bytes)
    };
    let bytes = read().with_context(|| format!("cannot read {}", path.display()))?;
    let profile = StoredPprof::read(&bytes);
    let mut profile = profile.with_context(|| format!("cannot read {}", path.display()))?;
    let progress = Progress::start("looking up names");
    let added = names.add_to(&mut profile);
    drop(progress);
    let failed = || format!("cannot write {}", output.display());
    let written = OutputFile::create(output, force)?;
    let packed = profile.to_gzip().with_context(failed)?;
    written.file().write_all(&packed).with_context(failed)?;
    written.keep().with_context(failed)?;
    Ok(added)
}

/// Describes in one line how many names were found.
fn line(added: &AddedNames, output: &Path) -> String {
    let all = added.modules + added.not_found.len();
    let mut line = format!(
        "{} of {} have names now, in {} of {}: {}",
        added.named,
        counted(added.nameless as u64, "location"),
        added.modules,
        counted(all as u64, "module"),
        output.display()
    );
    if !added.not_found.is_empty() {
        line += &format!("; no names found for {}", added.not_found.join(", "));
    }
    line
}
