//! Names that were looked up once, kept for the next run.
//!
//! An entry is a [`Bundle`] of one module. Only names from DWARF are kept; names from a symbol table are had at once, and a
//! debug file that is installed later would be better. An entry is found by the build-id and by the contents of
//! the files that the names come from ([`Fingerprint`](crate::fingerprint::Fingerprint)): a build-id is what a file says
//! of itself, and a file made to lie would otherwise name the functions of another one for all processes to come.
//!
//! Several processes may write: each writes a file of its own and renames it, so a reader sees one
//! writer's entry or another's. What cannot be read, or is damaged, is as if it were not there.

use crate::bundle::{Bundle, BundledModule};
use crate::fingerprint::Fingerprint;
use crate::{Frame, Source, cache_folder, file::hex};
use std::{
    collections::BTreeMap,
    fs::{File, Metadata},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::SystemTime,
};

/// Counts up when the same file gives other names than before.
const NAMES_VERSION: u32 = 2;
/// Bytes of all entries.
const MAX_NAMES_BYTES: u64 = 256 << 20;

/// A folder of names by build-id.
#[derive(Clone, Debug)]
pub struct SymbolCache {
    folder: PathBuf,
    max_names_bytes: u64,
}

impl SymbolCache {
    /// `memhook-rs` in the user's cache folder, if there is one of the user's own.
    pub fn of_user() -> Option<SymbolCache> {
        Some(SymbolCache::at(cache_folder::of_user()?.join("memhook-rs")))
    }

    /// A cache in this folder, which is made when something is kept.
    pub fn at(folder: PathBuf) -> SymbolCache {
        SymbolCache {
            folder,
            max_names_bytes: MAX_NAMES_BYTES,
        }
    }

    fn names_folder(&self) -> String {
        format!("names-{NAMES_VERSION}")
    }

    /// All names that are kept of these files.
    pub(crate) fn names(&self, id: &[u8], files: &Fingerprint) -> Option<BundledModule> {
        let folder = self.folder.join(self.names_folder());
        if !cache_folder::is_ours(&self.folder) || !cache_folder::is_ours(&folder) {
            return None;
        }
        let path = folder.join(entry_name(id, files));
        let module = Bundle::read(&path).ok()?.into_only(id)?;
        // What is used is not what goes first.
        let _ = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        Some(module)
    }

    /// Adds names to those that are kept of these files. What cannot be written is not kept.
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
        let place = Place {
            caches: &self.folder,
            name: &self.names_folder(),
        };
        let entry = entry_name(id, files);
        let write = |file: &mut File, _: &Path| bundle.encode(file, 1).map(drop);
        if place.write_whole(&entry, write).is_ok() {
            place.prune(&entry, self.max_names_bytes);
        }
    }

    /// Where downloaded files are kept.
    pub(crate) fn debug_files(&self) -> (PathBuf, &'static str) {
        (self.folder.clone(), "debuginfod")
    }
}

/// A build-id may be of any length.
fn entry_name(id: &[u8], files: &Fingerprint) -> String {
    format!("{}-{}", hex(&id[..id.len().min(32)]), files.hex())
}

/// A folder of files that come and go, below the one of all our caches.
pub(crate) struct Place<'a> {
    pub caches: &'a Path,
    pub name: &'a str,
}

impl Place<'_> {
    /// Writes a file that others see when it is complete; until then it has a name of its own.
    pub fn write_whole<E: From<std::io::Error>>(
        &self,
        name: &str,
        write: impl FnOnce(&mut File, &Path) -> Result<(), E>,
    ) -> Result<PathBuf, E> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = cache_folder::make(self.caches, self.name)?;
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
    pub fn prune(&self, keep: &str, max_bytes: u64) {
        let folder = self.caches.join(self.name);
        if !cache_folder::is_ours(self.caches) || !cache_folder::is_ours(&folder) {
            return;
        }
        let Ok(entries) = std::fs::read_dir(folder) else {
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
