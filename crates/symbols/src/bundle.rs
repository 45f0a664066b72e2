//! Names that were looked up on a machine with the files, for use on a machine without them.
//!
//! A bundle consists of eight bytes of magic and a zstd frame of JSON. For each module, the JSON has the build-id and
//! the frames at each requested address.

use crate::{Frame, ModuleFile, Source, file::hex};
use memhook_foreign::{OutputError, OutputFile};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// First bytes of a file. The last of them is the version.
const MAGIC: [u8; 8] = *b"MHKSYMS1";
/// Upper bound on the memory of a valid bundle.
const MAX_BYTES: u64 = 1 << 30;

/// Reason why a bundle cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The operating system reported an error.
    #[error("cannot {action} {}: {error}", path.display())]
    Io {
        /// Attempted action: "read" or "write".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Error from the system.
        error: std::io::Error,
    },
    /// The file cannot be created, because a file or a link already exists.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The file is of another kind.
    #[error("{} is not a symbol bundle: make one with memhook-rs symbols pack", path.display())]
    NotABundle {
        /// The file.
        path: PathBuf,
    },
    /// The bundle is from another version of the program.
    #[error("{} is a symbol bundle of another version: make a new one with memhook-rs symbols pack", path.display())]
    Version {
        /// The file.
        path: PathBuf,
    },
    /// The contents of the bundle are damaged.
    #[error("{} is damaged: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Description of the damage.
        reason: String,
    },
}

/// Names of one module.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BundledModule {
    pub path: String,
    /// Build-id in hexadecimal digits; `None` if the module has none and is identified by its path.
    pub build_id: Option<String>,
    pub source: Source,
    /// Frames by address (svma), sorted.
    pub frames: Vec<(u64, Vec<Frame>)>,
}

/// Resolved addresses of some modules.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Bundle {
    modules: Vec<BundledModule>,
}

impl Bundle {
    pub(crate) fn new<'a>(
        modules: impl Iterator<Item = (&'a ModuleFile, Source, &'a HashMap<u64, Vec<Frame>>)>,
    ) -> Bundle {
        let module = |(file, source, frames): (&ModuleFile, Source, &HashMap<u64, Vec<Frame>>)| {
            let mut frames: Vec<_> = frames.iter().map(|(&at, f)| (at, f.clone())).collect();
            frames.sort_unstable_by_key(|(svma, _)| *svma);
            BundledModule {
                path: file.path.clone(),
                build_id: file.build_id.as_deref().map(hex),
                source,
                frames,
            }
        };
        Bundle {
            modules: modules.map(module).collect(),
        }
    }

    /// Creates a bundle of one module.
    pub(crate) fn of_one(module: BundledModule) -> Bundle {
        Bundle {
            modules: vec![module],
        }
    }

    /// Returns the module with this build-id from a bundle that has only one module.
    pub(crate) fn into_only(self, id: &[u8]) -> Option<BundledModule> {
        let [module] = <[BundledModule; 1]>::try_from(self.modules).ok()?;
        (module.build_id.as_deref() == Some(&hex(id))).then_some(module)
    }

    /// Merges bundles. A module that is in several bundles gets the names from all of them.
    pub fn merged(bundles: impl IntoIterator<Item = Bundle>) -> Bundle {
        let mut merged = Bundle::default();
        for module in bundles.into_iter().flat_map(|bundle| bundle.modules) {
            let same = |known: &&mut BundledModule| {
                known.build_id == module.build_id
                    && (known.build_id.is_some() || known.path == module.path)
            };
            match merged.modules.iter_mut().find(same) {
                Some(known) => {
                    known.source = known.source.max(module.source);
                    known.frames.extend(module.frames);
                    known.frames.sort_unstable_by_key(|(svma, _)| *svma);
                    known.frames.dedup_by_key(|(svma, _)| *svma);
                }
                None => merged.modules.push(module),
            }
        }
        merged
    }

    /// Returns the number of addresses with a name, and the number of all addresses.
    pub fn counts(&self) -> (usize, usize) {
        let all = || self.modules.iter().flat_map(|module| &module.frames);
        let named = all().filter(|(_, frames)| !frames.is_empty());
        (named.count(), all().count())
    }

    /// Returns the names of a module with an equal build-id, or, if it has no build-id, with an equal path.
    pub(crate) fn of(&self, file: &ModuleFile) -> Option<&BundledModule> {
        let id = file.build_id.as_deref().map(hex);
        let same = |module: &&BundledModule| {
            module.build_id == id && (id.is_some() || module.path == file.path)
        };
        self.modules.iter().find(same)
    }

    /// Writes the bundle. Fails if the file exists, unless `overwrite` is set.
    pub fn write(&self, path: &Path, overwrite: bool) -> Result<(), BundleError> {
        let failed = |error| BundleError::Io {
            action: "write",
            path: path.to_owned(),
            error,
        };
        let output = OutputFile::create(path, overwrite)?;
        let file = self.encode(output.file(), 9).map_err(failed)?;
        match file.sync_all() {
            // Pipes and devices cannot be synchronized (fsync(2)).
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {}
            synced => synced.map_err(failed)?,
        }
        output.keep().map_err(failed)?;
        Ok(())
    }

    /// Writes the bytes of a file, with zstd's checksum.
    pub(crate) fn encode<W: Write>(&self, mut to: W, level: i32) -> std::io::Result<W> {
        to.write_all(&MAGIC)?;
        let mut encoder = zstd::Encoder::new(to, level)?;
        encoder.include_checksum(true)?;
        serde_json::to_writer(&mut encoder, self)?;
        encoder.finish()
    }

    /// Reads a bundle.
    pub fn read(path: &Path) -> Result<Bundle, BundleError> {
        let failed = |error| BundleError::Io {
            action: "read",
            path: path.to_owned(),
            error,
        };
        let path_of = || path.to_owned();
        let mut file = File::open(path).map_err(failed)?;
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(BundleError::NotABundle { path: path_of() });
        }
        let mut magic = Vec::new();
        let first = (&mut file).take(MAGIC.len() as u64);
        { first }.read_to_end(&mut magic).map_err(failed)?;
        if magic.len() < MAGIC.len() || magic[..7] != MAGIC[..7] {
            return Err(BundleError::NotABundle { path: path_of() });
        }
        if magic[7] != MAGIC[7] {
            return Err(BundleError::Version { path: path_of() });
        }
        let damaged = |reason: String| BundleError::Damaged {
            path: path.to_owned(),
            reason,
        };
        let decoder = zstd::Decoder::new(file).map_err(|error| damaged(error.to_string()))?;
        let reader = std::io::BufReader::new(decoder.take(MAX_BYTES));
        serde_json::from_reader(reader).map_err(|error| damaged(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (ModuleFile, Bundle) {
        let file = ModuleFile {
            path: "/x".into(),
            build_id: Some(vec![1, 2]),
            ..ModuleFile::default()
        };
        let frame = Frame {
            function: Some("f".into()),
            ..Frame::default()
        };
        let frames = HashMap::from([(5, vec![frame]), (3, Vec::new())]);
        let bundle = Bundle::new([(&file, Source::Symbols, &frames)].into_iter());
        (file, bundle)
    }

    #[test]
    fn a_bundle_comes_back_for_its_builds_only() {
        let (file, bundle) = sample();
        let path = std::env::temp_dir().join(format!("memhook-bundle-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        bundle.write(&path, false).unwrap();
        let error = bundle.write(&path, false).unwrap_err();
        assert!(error.to_string().contains("exists already"), "{error}");
        let back = Bundle::read(&path).unwrap();
        assert_eq!(back.counts(), (1, 2));
        assert_eq!(
            back.of(&file).unwrap().frames,
            bundle.of(&file).unwrap().frames
        );
        let other = ModuleFile {
            build_id: Some(vec![1, 3]),
            ..file.clone()
        };
        assert!(back.of(&other).is_none());
        let without = ModuleFile {
            build_id: None,
            ..file
        };
        assert!(back.of(&without).is_none());
        // Any prefix and any flipped byte must lead to an error or a bundle, never to a panic.
        let bytes = std::fs::read(&path).unwrap();
        for cut in 0..bytes.len() {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            assert!(Bundle::read(&path).is_err(), "cut at {cut}");
        }
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x55;
            std::fs::write(&path, &bytes).unwrap();
            let _ = Bundle::read(&path);
        }
        std::fs::remove_file(&path).unwrap();
    }
}
