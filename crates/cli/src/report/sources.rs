//! Where a report on another machine takes its names from.

use anyhow::{Context, bail};
use memhook_recording::Recording;
use memhook_report::recorded::{self, NameSources};
use memhook_symbols::{Bundle, Symbolizer};
use std::path::PathBuf;

/// Options about symbols.
#[derive(clap::Args, Clone, Debug, Default)]
#[group(skip)]
pub struct Args {
    #[command(flatten)]
    pub files: FileArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
}

/// Options about what is kept for later runs.
#[derive(clap::Args, Clone, Debug, Default)]
#[group(skip)]
pub struct CacheArgs {
    /// Look up every name in the files, compile every unwind table, and keep neither for later runs
    #[arg(long)]
    pub no_symbol_cache: bool,
}

/// Options about files.
#[derive(clap::Args, Clone, Debug, Default)]
#[group(skip)]
pub struct FileArgs {
    /// Look for the target's files below this directory, which is the root of its file system or a
    /// copy of it
    #[arg(long, value_name = "DIR")]
    pub sysroot: Vec<PathBuf>,
    /// Look for debug files in this directory as well (DIR/.build-id/ab/cdef.debug, or by name)
    #[arg(long, value_name = "DIR")]
    pub debug_dir: Vec<PathBuf>,
    /// Take names from this bundle, which `memhook-rs symbols pack` has made
    #[arg(long, value_name = "FILE")]
    pub symbols: Vec<PathBuf>,
}

/// Refuses what is not a directory.
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

/// Knows the names of the recording's addresses.
pub fn symbolizer(recording: &Recording, args: &Args) -> anyhow::Result<Symbolizer> {
    let files = &args.files;
    check_directories(files.sysroot.iter().chain(&files.debug_dir))?;
    let bundles = files.symbols.iter().map(|path| Bundle::read(path));
    let sources = NameSources {
        sysroots: files.sysroot.clone(),
        debug_directories: files.debug_dir.clone(),
        bundles: bundles.collect::<Result<_, _>>()?,
        without_cache: args.cache.no_symbol_cache,
    };
    Ok(recorded::symbolizer(recording, sources))
}

/// Says which files were refused, but not which are missing: most targets have no debug files.
pub fn tell_refused(symbols: &Symbolizer) {
    for problem in symbols.refused() {
        eprintln!("memhook-rs: not used: {problem}");
    }
}
