//! Profiles as files in a directory. If there are too many, the oldest are removed.

use super::SendError;
use crate::board::Identity;
use crate::config::Files;
use flate2::{Compression, write::GzEncoder};
use memhook_foreign::OwnDirectory;
use memhook_report::{PprofShape, Profile, pprof};
use std::collections::VecDeque;
use std::io::Write;
use std::time::SystemTime;

/// Suffix of the files' names.
const END: &str = ".pb.gz";
/// Prefix of the files' names, so that no other file is ever mistaken for one of ours.
const BEGIN: &str = "memhook-";
/// Contents of a heap profile in the order that go tool pprof uses.
const SHAPE: PprofShape = PprofShape {
    values: &[
        "alloc_objects",
        "alloc_space",
        "inuse_objects",
        "inuse_space",
    ],
    has_kinds: true,
    has_threads: false,
    has_comments: true,
};

/// The directory.
pub struct Directory {
    own: OwnDirectory,
    keep: usize,
    max_bytes: u64,
    /// Names and sizes of the files, oldest first.
    kept: VecDeque<(String, u64)>,
    bytes: u64,
    count: u64,
    has_failed: bool,
}

impl Directory {
    /// Creates the directory if it is missing, and finds the files of an earlier agent in it.
    pub fn new(files: &Files) -> Result<Directory, SendError> {
        let failed = |source| SendError::Directory {
            path: files.directory.clone(),
            source,
        };
        let own = OwnDirectory::make(&files.directory).map_err(failed)?;
        Directory::of(own, files.keep, files.max_bytes.0).map_err(failed)
    }

    /// Uses the files in an open directory.
    pub fn of(own: OwnDirectory, keep: u32, max_bytes: u64) -> std::io::Result<Directory> {
        let mut found: Vec<(SystemTime, String, u64)> = Vec::new();
        for entry in own.entries()? {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_ours = name.starts_with(BEGIN);
            if is_ours && OwnDirectory::is_part(&name) {
                let _ = own.remove(&name);
            }
            if let Ok(metadata) = entry.metadata()
                && is_ours
                && name.ends_with(END)
                && metadata.is_file()
            {
                let time = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                found.push((time, name, metadata.len()));
            }
        }
        found.sort();
        let directory = Directory {
            own,
            keep: keep.max(1) as usize,
            max_bytes,
            bytes: found.iter().map(|(.., bytes)| bytes).sum(),
            kept: found
                .into_iter()
                .map(|(_, name, bytes)| (name, bytes))
                .collect(),
            count: 0,
            has_failed: false,
        };
        // Checks that the directory is writable before any process is touched.
        let probe = format!("{BEGIN}{}.probe", std::process::id());
        directory.own.write_whole(&probe, b"")?;
        directory.own.remove(&probe)?;
        Ok(directory)
    }

    /// Writes a profile. Repeated errors are reported only once, until a write succeeds again.
    pub fn put(&mut self, profile: &Profile, identity: &Identity) -> Result<(), Option<String>> {
        self.put_for("", profile, identity)
    }

    /// Like [`Self::put`], with the reason in the name.
    pub fn put_for(
        &mut self,
        reason: &str,
        profile: &Profile,
        identity: &Identity,
    ) -> Result<(), Option<String>> {
        self.count += 1;
        let service: String = identity.service.chars().map(plain).take(100).collect();
        let ends_ms = profile.began_unix_ms + profile.to_ns / 1_000_000;
        let name = format!(
            "{BEGIN}{service}-{}-{ends_ms}-{}{}{reason}{END}",
            identity.pid,
            self.count,
            if reason.is_empty() { "" } else { "-" }
        );
        match write(&self.own, &name, profile) {
            Ok(bytes) => {
                self.has_failed = false;
                self.kept.push_back((name, bytes));
                self.bytes += bytes;
                self.rotate();
                Ok(())
            }
            Err(error) => {
                let is_new = !std::mem::replace(&mut self.has_failed, true);
                Err(is_new.then(|| {
                    format!(
                        "profiles are lost: cannot write into {}: {error}",
                        self.own.path().display()
                    )
                }))
            }
        }
    }

    fn rotate(&mut self) {
        while self.kept.len() > self.keep || (self.bytes > self.max_bytes && self.kept.len() > 1) {
            let Some((name, bytes)) = self.kept.pop_front() else {
                return;
            };
            let _ = self.own.remove(&name);
            self.bytes -= bytes;
        }
    }
}

/// Writes a file that appears under its name when it is complete.
fn write(directory: &OwnDirectory, name: &str, profile: &Profile) -> std::io::Result<u64> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&pprof(profile, &SHAPE))?;
    let packed = packed.finish()?;
    directory.write_whole(name, &packed)?;
    Ok(packed.len() as u64)
}

/// Replaces characters that are invalid in file names.
fn plain(character: char) -> char {
    if character.is_ascii_alphanumeric() || "-_.".contains(character) {
        character
    } else {
        '_'
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn names(path: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(path).expect("there").flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_oldest_go_and_files_of_others_stay() {
        let path = std::env::temp_dir().join(format!("memhook-files-{}", std::process::id()));
        let files = Files {
            directory: path.clone(),
            ..toml::from_str(&format!("directory = {path:?}\nkeep = 3")).expect("right")
        };
        let mut directory = Directory::new(&files).expect("made");
        std::fs::write(path.join("notes.pb.gz"), "of others").expect("written");
        let identity = Identity {
            service: "../odd name".into(),
            ..Identity::default()
        };
        for _ in 0..5 {
            directory
                .put(&Profile::default(), &identity)
                .expect("written");
        }
        let found = names(&path);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(
            found[0].starts_with("memhook-.._odd_name-0-0-3"),
            "{found:?}"
        );
        let mode = |name: &str| {
            let metadata = std::fs::symlink_metadata(path.join(name)).expect("there");
            std::os::unix::fs::MetadataExt::mode(&metadata) & 0o777
        };
        assert_eq!(mode(&found[0]), 0o600);
        // A user who can write to the directory must not be able to redirect the next profile by
        // creating a link with its name.
        let victim = path.with_extension("victim");
        std::fs::write(&victim, "theirs").expect("written");
        let next = path.join("memhook-.._odd_name-0-0-6.pb.gz.part");
        std::os::unix::fs::symlink(&victim, next).expect("linked");
        directory
            .put(&Profile::default(), &identity)
            .expect("written");
        assert_eq!(std::fs::read_to_string(&victim).expect("there"), "theirs");
        std::fs::remove_file(&victim).expect("removed");
        std::fs::write(path.join("memhook-x.pb.gz.part"), "half").expect("written");
        let mut again = Directory::new(&Files {
            keep: 2,
            ..files.clone()
        })
        .expect("there");
        again.put(&Profile::default(), &identity).expect("written");
        let left = names(&path);
        assert_eq!(left.len(), 3, "{left:?}");
        std::fs::remove_dir_all(&path).expect("removed");
        // The error is reported once.
        assert!(
            again
                .put(&Profile::default(), &identity)
                .is_err_and(|why| why.is_some())
        );
        assert!(
            again
                .put(&Profile::default(), &identity)
                .is_err_and(|why| why.is_none())
        );
    }
}
