//! Directory of our caches, and the check of its owner.
//!
//! The next run trusts the directory's contents, and removes files in it. So the directory must belong to the user. It
//! must not be reached through a link, and it must not belong to another user, whose home HOME may name after
//! `sudo -E`.

use crate::own_directory::{is_of, is_ours};
use std::{
    ffi::OsString,
    fs::{DirBuilder, File, Metadata},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::SystemTime,
};

/// Returns the directory of our caches: `memhook-rs` in the user's cache directory (XDG Base Directory Specification),
/// which is `$XDG_CACHE_HOME`, or `.cache` in `$HOME`. If the HOME of root belongs to another user, the cache directory
/// is in root's own home. `None` if the user has no home.
pub fn user_caches() -> Option<PathBuf> {
    let user = nix::unistd::geteuid().as_raw();
    let directory = directory_of(user, &|name| std::env::var_os(name), home_of_root)?;
    Some(directory.join("memhook-rs"))
}

/// Returns the cache directory of this user, in an environment with these variables.
fn directory_of(
    user: u32,
    variable: &dyn Fn(&str) -> Option<OsString>,
    home_of_root: impl FnOnce() -> Option<PathBuf>,
) -> Option<PathBuf> {
    let absolute = |name: &str| {
        let path = PathBuf::from(variable(name)?);
        path.is_absolute().then_some(path)
    };
    if let Some(directory) = absolute("XDG_CACHE_HOME") {
        // The user asked for this directory. If it is unusable, no other directory is used instead.
        let is_own = directory.ancestors().find_map(|path| path.metadata().ok());
        return is_own.filter(|found| is_of(found, user)).map(|_| directory);
    }
    let is_own = |home: &PathBuf| home.metadata().is_ok_and(|found| is_of(&found, user));
    let home = absolute("HOME").filter(is_own);
    let home = home.or_else(|| home_of_root().filter(|home| user == 0 && is_own(home)));
    Some(home?.join(".cache"))
}

/// Reads the passwd(5) file, because a static program cannot safely call the C library's functions for this.
fn home_of_root() -> Option<PathBuf> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let home = users.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (*fields.get(2)? == "0")
            .then(|| fields.get(5).copied())
            .flatten()
    });
    home.map(PathBuf::from).filter(|home| home.is_absolute())
}

/// Directory of replaceable files, in the directory of all our caches.
pub struct CacheDirectory<'a> {
    /// Directory of all our caches.
    pub caches: &'a Path,
    /// Name of this directory in it.
    pub name: &'a str,
}

impl CacheDirectory<'_> {
    /// Returns the path of a file in the directory, if its contents can be trusted to be ours.
    pub fn find(&self, name: &str) -> Option<PathBuf> {
        let directory = self.caches.join(self.name);
        (is_ours(self.caches) && is_ours(&directory)).then(|| directory.join(name))
    }

    /// Creates the directory and its parent, the directory of all our caches, unless they exist.
    ///
    /// # Errors
    /// Fails if they are not ours, or cannot be created.
    pub fn make(&self) -> std::io::Result<PathBuf> {
        let directory = self.caches.join(self.name);
        // The specification requires access for the user only.
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)?;
        if is_ours(self.caches) && is_ours(&directory) {
            Ok(directory)
        } else {
            Err(std::io::ErrorKind::PermissionDenied.into())
        }
    }

    /// Records that a file was used, because the least recently used files are removed first.
    pub fn note_use(path: &Path) {
        let _ = File::open(path).and_then(|file| file.set_modified(SystemTime::now()));
    }

    /// Writes a file under a temporary name, and renames it when it is complete, so that readers see only complete
    /// files.
    ///
    /// # Errors
    /// Fails if the directory is not ours, or is not writable.
    pub fn write_whole<E: From<std::io::Error>>(
        &self,
        name: &str,
        write: impl FnOnce(&mut File, &Path) -> Result<(), E>,
    ) -> Result<PathBuf, E> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = self.make()?;
        let own = directory.join(format!("{name}.{}.{number}", std::process::id()));
        let path = directory.join(name);
        // A process with our pid may have died here.
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

    /// Removes the least recently used files until the total size is at most `max_bytes`, except `keep`. Files left by
    /// dead writers are removed in the same way.
    pub fn prune(&self, keep: &str, max_bytes: u64) {
        let directory = self.caches.join(self.name);
        if !is_ours(self.caches) || !is_ours(&directory) {
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
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    #[test]
    fn a_home_that_is_not_the_users_own_is_not_used() {
        let base = std::env::temp_dir().join(format!("memhook-homes-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&base);
        let made = |name: &str, mode: u32| {
            let path = base.join(name);
            std::fs::create_dir_all(&path).expect("made");
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).expect("ours");
            path
        };
        let (own, open, root) = (made("own", 0o755), made("open", 0o777), made("root", 0o700));
        let user = own.metadata().expect("there").uid();
        let chosen = |user: u32, variables: &[(&str, &Path)]| {
            let variable = |name: &str| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| value.as_os_str().to_owned())
            };
            directory_of(user, &variable, || Some(root.clone()))
        };
        let cache = |home: &Path| Some(home.join(".cache"));
        assert_eq!(chosen(user, &[("HOME", &own)]), cache(&own));
        // The directory belongs to another user, as after `sudo -E`: root has its own home, and must not use another
        // user's directory.
        let is_root = user == 0;
        let instead = is_root.then(|| root.join(".cache"));
        for foreign in [&open, Path::new("relative"), &base.join("missing")] {
            assert_eq!(chosen(user, &[("HOME", foreign)]), instead, "{foreign:?}");
        }
        let other = user + 1;
        assert_eq!(chosen(other, &[("HOME", &own)]), None);
        assert_eq!(chosen(other, &[]), None);
        // If the user requests a directory, no other is used. A new directory belongs to the owner of its parent.
        let new = own.join("new/cache");
        assert_eq!(chosen(user, &[("XDG_CACHE_HOME", &new)]), Some(new.clone()));
        let both = [("XDG_CACHE_HOME", &*new), ("HOME", &*own)];
        assert_eq!(chosen(other, &both), None);
        std::fs::remove_dir_all(&base).expect("ours");
    }
}
