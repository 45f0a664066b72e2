//! Names that were looked up once, kept for the next run.
//!
//! A file of the cache is a [`Bundle`] of one module. Only names from DWARF are kept: a symbol table is
//! read quickly, and a debug file that is installed later would give better names. A file is found by
//! the build-id and by the contents of the files that the names come from
//! ([`Fingerprint`](crate::fingerprint::Fingerprint)): any file can claim any build-id, and one made to lie
//! would otherwise name the functions of another one in all later runs.
//!
//! Several processes may write at once: each writes a file of its own and renames it, so a reader sees
//! one writer's file or another's. A file that cannot be read, or is damaged, counts as absent.

use crate::bundle::{Bundle, BundledModule};
use crate::fingerprint::Fingerprint;
use crate::{Frame, Source, cache_directory, file::hex};
use std::{
    collections::BTreeMap,
    fs::{File, Metadata},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::SystemTime,
};

/// Increase it when the same file gives other names than before.
const NAMES_VERSION: u32 = 2;
/// Bytes that all files of names may take.
const MAX_NAMES_BYTES: u64 = 256 << 20;

/// A directory of names by build-id.
#[derive(Clone, Debug)]
pub struct SymbolCache {
    directory: PathBuf,
    max_names_bytes: u64,
}

impl SymbolCache {
    /// `memhook-rs` in the user's cache directory, if there is one of the user's own.
    pub fn of_user() -> Option<SymbolCache> {
        Some(SymbolCache::at(
            cache_directory::of_user()?.join("memhook-rs"),
        ))
    }

    /// A cache in this directory, which is made when something is kept.
    pub fn at(directory: PathBuf) -> SymbolCache {
        SymbolCache {
            directory,
            max_names_bytes: MAX_NAMES_BYTES,
        }
    }

    fn names_directory(&self) -> String {
        format!("names-{NAMES_VERSION}")
    }

    /// All names that are kept for these files.
    pub(crate) fn names(&self, id: &[u8], files: &Fingerprint) -> Option<BundledModule> {
        let directory = self.directory.join(self.names_directory());
        if !cache_directory::is_ours(&self.directory) || !cache_directory::is_ours(&directory) {
            return None;
        }
        let path = directory.join(file_name(id, files));
        let module = Bundle::read(&path).ok()?.into_only(id)?;
        // The least recently used files are removed first.
        let _ = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        Some(module)
    }

    /// Adds names to those that are kept for these files, if the cache can be written to.
    pub(crate) fn keep_names(
        &self,
        id: &[u8],
        files: &Fingerprint,
        path: &str,
        names: &[(u64, Vec<Frame>)],
    ) {
        let old = self.names(id, files).map(|module| module.frames);
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
        let place = CacheDirectory {
            caches: &self.directory,
            name: &self.names_directory(),
        };
        let entry = file_name(id, files);
        let write = |file: &mut File, _: &Path| bundle.encode(file, 1).map(drop);
        if place.write_whole(&entry, write).is_ok() {
            place.prune(&entry, self.max_names_bytes);
        }
    }

    /// Where downloaded files are kept.
    pub(crate) fn debug_files(&self) -> (PathBuf, &'static str) {
        (self.directory.clone(), "debuginfod")
    }
}

/// The name of a file of names. A build-id may have any length.
fn file_name(id: &[u8], files: &Fingerprint) -> String {
    format!("{}-{}", hex(&id[..id.len().min(32)]), files.hex())
}

/// A directory of files that come and go, below the one of all our caches.
pub(crate) struct CacheDirectory<'a> {
    pub caches: &'a Path,
    pub name: &'a str,
}

impl CacheDirectory<'_> {
    /// Writes a file under a name of its own, and renames it when it is complete, so that others see only
    /// complete files.
    pub fn write_whole<E: From<std::io::Error>>(
        &self,
        name: &str,
        write: impl FnOnce(&mut File, &Path) -> Result<(), E>,
    ) -> Result<PathBuf, E> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = cache_directory::make(self.caches, self.name)?;
        let own = directory.join(format!("{name}.{}.{number}", std::process::id()));
        let path = directory.join(name);
        // A process that had our number may have died here.
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

    /// Removes the least recently used files until all together have at most `max_bytes`; `keep` stays. Files
    /// that dead writers left are removed in the same way.
    pub fn prune(&self, keep: &str, max_bytes: u64) {
        let directory = self.caches.join(self.name);
        if !cache_directory::is_ours(self.caches) || !cache_directory::is_ours(&directory) {
            return;
        }
        let Ok(entries) = std::fs::read_dir(directory) else {
            return;
        };
        let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let metadata = entry.metadata().ok().filter(Metadata::is_file)?;
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
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
