//! Cached names, stored for the next run.
//!
//! A cache file is a [`Bundle`] of one module. Only names from DWARF are stored, because a symbol
//! table is read quickly, and a debug file that is installed later would give better names. The key
//! of a cache file consists of the build-id and the contents of the files that provide the names
//! ([`Fingerprint`](crate::fingerprint::Fingerprint)). Any file can claim any build-id. If the
//! build-id alone were the key, a forged file could name another file's functions in all later
//! runs.
//!
//! Several processes may write simultaneously. Each writes a separate file and renames it, so a
//! reader sees the complete file of one writer. A file that cannot be read, or that is damaged,
//! counts as absent.

use crate::bundle::{Bundle, BundledModule};
use crate::fingerprint::Fingerprint;
use crate::{Frame, Source, file::hex};
use memhook_foreign::{CacheDirectory, user_caches};
use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
};

/// Version of the names. Increase it when the names obtained from a file change.
const NAMES_VERSION: u32 = 3;
/// Maximum bytes of all files of names.
const MAX_NAMES_BYTES: u64 = 256 << 20;

/// A directory of names by build-id.
#[derive(Clone, Debug)]
pub struct SymbolCache {
    directory: PathBuf,
    max_names_bytes: u64,
}

impl SymbolCache {
    /// Returns `memhook-rs` in the user's cache directory, if the user has one.
    pub fn of_user() -> Option<SymbolCache> {
        Some(SymbolCache::at(user_caches()?))
    }

    /// Returns a cache in this directory, which is created when the first name is stored.
    pub fn at(directory: PathBuf) -> SymbolCache {
        SymbolCache {
            directory,
            max_names_bytes: MAX_NAMES_BYTES,
        }
    }

    fn names_directory(&self) -> String {
        format!("names-{NAMES_VERSION}")
    }

    /// Returns all stored names for these files.
    pub(crate) fn names(&self, id: &[u8], files: &Fingerprint) -> Option<BundledModule> {
        let place = CacheDirectory {
            caches: &self.directory,
            name: &self.names_directory(),
        };
        let path = place.find(&file_name(id, files))?;
        let module = Bundle::read(&path).ok()?.into_only(id)?;
        CacheDirectory::note_use(&path);
        Some(module)
    }

    /// Adds names to the cached names of these files, if the cache is writable.
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

    /// Returns the directory of downloaded files.
    pub(crate) fn debug_files(&self) -> (PathBuf, &'static str) {
        (self.directory.clone(), "debuginfod")
    }
}

/// Returns the name of the file that caches names. A build-id may have any length.
fn file_name(id: &[u8], files: &Fingerprint) -> String {
    format!("{}-{}", hex(&id[..id.len().min(32)]), files.hex())
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
