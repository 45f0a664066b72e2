//! Names that were looked up once, kept by build-id for the next run.
//!
//! An entry is a [`Bundle`] of one module. Only names from DWARF are kept: a build-id stands for the
//! contents of the file, so they cannot change; names from a symbol table are had at once, and a
//! debug file that is installed later would be better.
//!
//! Several processes may write: each writes a file of its own and renames it, so a reader sees one
//! writer's entry or another's. What cannot be read, or is damaged, is as if it were not there.

use crate::bundle::{Bundle, BundledModule};
use crate::{Frame, Source, file::hex};
use std::{
    collections::BTreeMap,
    fs::{DirBuilder, File},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::SystemTime,
};

/// Counts up when the same file gives other names than before.
const NAMES_VERSION: u32 = 1;
/// Bytes of all entries.
const MAX_NAMES_BYTES: u64 = 256 << 20;

/// A folder of names by build-id.
#[derive(Clone, Debug)]
pub struct SymbolCache {
    folder: PathBuf,
    max_names_bytes: u64,
}

impl SymbolCache {
    /// `memhook-rs` in the user's cache folder (XDG Base Directory Specification): below
    /// `$XDG_CACHE_HOME`, or `.cache` in `$HOME`. `None` where neither is an absolute path.
    pub fn of_user() -> Option<SymbolCache> {
        let absolute = |name: &str| {
            let path = PathBuf::from(std::env::var_os(name)?);
            path.is_absolute().then_some(path)
        };
        let folder = absolute("XDG_CACHE_HOME");
        let folder = folder.or_else(|| Some(absolute("HOME")?.join(".cache")))?;
        Some(SymbolCache::at(folder.join("memhook-rs")))
    }

    /// A cache in this folder, which is made when something is kept.
    pub fn at(folder: PathBuf) -> SymbolCache {
        SymbolCache {
            folder,
            max_names_bytes: MAX_NAMES_BYTES,
        }
    }

    fn names_folder(&self) -> PathBuf {
        self.folder.join(format!("names-{NAMES_VERSION}"))
    }

    /// Where downloaded files are kept.
    pub(crate) fn debug_files_folder(&self) -> PathBuf {
        self.folder.join("debuginfod")
    }

    /// All names that are kept of a build.
    pub(crate) fn names(&self, id: &[u8]) -> Option<BundledModule> {
        let path = self.names_folder().join(hex(id));
        let module = Bundle::read(&path).ok()?.into_only(id)?;
        // What is used is not what goes first.
        let _ = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        Some(module)
    }

    /// Adds names to those that are kept of a build. What cannot be written is not kept.
    pub(crate) fn keep_names(&self, id: &[u8], path: &str, names: &[(u64, Vec<Frame>)]) {
        let old = self.names(id).map(|module| module.frames);
        let mut all: BTreeMap<u64, Vec<Frame>> = old.unwrap_or_default().into_iter().collect();
        let before = all.len();
        all.extend(names.iter().cloned());
        if all.len() == before {
            return;
        }
        let bundle = Bundle::of_one(BundledModule {
            path: path.to_owned(),
            build_id: Some(hex(id)),
            source: Source::DebugInfo,
            frames: all.into_iter().collect(),
        });
        let folder = self.names_folder();
        let write = |file: &mut File, _: &Path| bundle.encode(file, 1).map(drop);
        if write_whole(&folder, &hex(id), write).is_ok() {
            prune(&folder, &hex(id), self.max_names_bytes);
        }
    }
}

/// Writes a file that others see when it is complete; until then it has a name of its own.
pub(crate) fn write_whole<E: From<std::io::Error>>(
    folder: &Path,
    name: &str,
    write: impl FnOnce(&mut File, &Path) -> Result<(), E>,
) -> Result<PathBuf, E> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    // The specification wants the folder for the user alone.
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let own = folder.join(format!("{name}.{}.{number}", std::process::id()));
    let path = folder.join(name);
    // A process of that number that died here left it.
    let _ = std::fs::remove_file(&own);
    let written = File::create_new(&own)
        .map_err(E::from)
        .and_then(|mut file| write(&mut file, &own))
        .and_then(|()| Ok(std::fs::rename(&own, &path)?));
    if written.is_err() {
        let _ = std::fs::remove_file(&own);
    }
    written.map(|()| path)
}

/// Removes the files that were not used for longest, until all together have at most `max_bytes`; `keep`
/// stays. Files that dead writers left go the same way.
pub(crate) fn prune(folder: &Path, keep: &str, max_bytes: u64) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let metadata = entry.metadata().ok()?;
            Some((metadata.modified().ok()?, metadata.len(), entry.path()))
        })
        .collect();
    files.sort_unstable();
    let mut bytes: u64 = files.iter().map(|(_, size, _)| size).sum();
    for (_, size, path) in files {
        if bytes <= max_bytes {
            return;
        }
        if path.file_name() != Some(keep.as_ref()) && std::fs::remove_file(&path).is_ok() {
            bytes -= size;
        }
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
