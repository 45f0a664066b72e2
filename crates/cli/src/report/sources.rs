//! Sources of names for a report on another machine.

use anyhow::{Context, bail};
use memhook_recording::Recording;
use memhook_report::recorded::{self, NameSources};
use memhook_symbols::{Bundle, Symbolizer};
use std::path::PathBuf;

/// Options about names.
#[derive(clap::Args, Clone, Debug, Default)]
#[group(skip)]
#[command(next_help_heading = "Names")]
pub struct Args {
    /// Root of the target's file system, or a copy of it
    #[arg(long, value_name = "DIR")]
    pub sysroot: Vec<PathBuf>,
    /// Take names from this bundle (made by symbols pack) or directory
    ///
    /// In a directory, debug files are found by build-id (DIR/.build-id/ab/cdef.debug) or by name.
    #[arg(long, value_name = "PATH")]
    pub symbols: Vec<PathBuf>,
}

/// Refuses anything but a directory.
pub fn check_directories<'a>(paths: impl Iterator<Item = &'a PathBuf>) -> anyhow::Result<()> {
    for path in paths {
        let metadata = std::fs::metadata(path);
        let metadata = metadata.with_context(|| format!("cannot read {}", path.display()))?;
        if !metadata.is_dir() {
            bail!("{} is not a directory", path.display());
        }
    }
    Ok(())
}

/// Returns a symbolizer for the recording's addresses.
pub fn symbolizer(recording: &Recording, args: &Args) -> anyhow::Result<Symbolizer> {
    Ok(recorded::symbolizer(recording, name_sources(args)?))
}

/// Returns the sources of names that the options choose.
pub fn name_sources(args: &Args) -> anyhow::Result<NameSources> {
    check_directories(args.sysroot.iter())?;
    let (directories, bundles): (Vec<_>, Vec<_>) =
        args.symbols.iter().cloned().partition(|path| path.is_dir());
    let bundles = bundles.iter().map(|path| Bundle::read(path));
    Ok(NameSources {
        sysroots: args.sysroot.clone(),
        debug_directories: directories,
        bundles: bundles.collect::<Result<_, _>>()?,
    })
}

/// Reports refused files, but not missing ones, because most targets have no debug files.
pub fn tell_refused(symbols: &Symbolizer) {
    for problem in symbols.refused() {
        eprintln!("memhook-rs: not used: {problem}");
    }
}
