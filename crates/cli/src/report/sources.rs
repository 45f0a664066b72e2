//! Where a report on another machine takes its names from.

use anyhow::{Context, bail};
use memhook_recording::Recording;
use memhook_report::recorded::ordered_modules;
use memhook_symbols::{
    Bundle, Debuginfod, ModuleFile, SearchPath, SymbolCache, SymbolError, Symbolizer,
};
use std::{io::ErrorKind, path::PathBuf};

/// Options about symbols.
#[derive(clap::Args, Clone, Debug, Default)]
#[group(skip)]
pub struct Args {
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
    /// Look up every name in the files, and keep none for later runs
    #[arg(long)]
    pub no_symbol_cache: bool,
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

/// The recording's modules, to be found by their build-ids.
pub fn symbolizer(recording: &Recording, args: &Args) -> anyhow::Result<Symbolizer> {
    check_directories(args.sysroot.iter().chain(&args.debug_dir))?;
    let root = PathBuf::from("/");
    let roots: Vec<PathBuf> = if args.sysroot.is_empty() {
        // The recording may be of this machine; the build-ids tell.
        vec![root]
    } else {
        args.sysroot.clone()
    };
    let cache = SymbolCache::of_user();
    let mut symbols = Symbolizer::new(SearchPath {
        roots: roots.clone(),
        debug_directories: args.debug_dir.clone(),
        debuginfod: cache.as_ref().and_then(Debuginfod::from_environment),
        cache: cache.filter(|_| !args.no_symbol_cache),
    });
    for path in &args.symbols {
        symbols.add_bundle(Bundle::read(path)?);
    }
    let modules = ordered_modules(recording).into_iter().map(|module| {
        let build_id = Some(module.build_id.clone()).filter(|id| !id.is_empty());
        // Without a build-id a file of this machine may be another one; a file in a sysroot was put
        // there on purpose.
        let is_known = build_id.is_some() || !args.sysroot.is_empty();
        let inside = module.path.trim_start_matches('/');
        ModuleFile {
            path: module.path.clone(),
            image: None,
            candidates: match is_known {
                true => roots.iter().map(|root| root.join(inside)).collect(),
                false => Vec::new(),
            },
            build_id,
            base: module.base,
            start: module.start,
            end: module.end,
        }
    });
    symbols.set_modules(modules.collect());
    Ok(symbols)
}

/// Says which files were refused, but not which are missing: most targets have no debug files.
pub fn tell_refused(symbols: &Symbolizer) {
    for problem in symbols.sources().flat_map(|module| &module.problems) {
        let is_absent = matches!(problem, SymbolError::Read { error, .. }
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory));
        if !is_absent {
            eprintln!("memhook-rs: not used: {problem}");
        }
    }
}
