//! Directories that other users cannot tamper with: other users can neither put a link or a file into such a directory
//! nor replace it by another directory.

use crate::output_file::own_name;
use crate::regular_file::not_regular;
use std::{
    fs::{DirBuilder, File, Metadata, OpenOptions},
    io::{Error, ErrorKind, Result, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Returns true for a directory of this user that other users cannot write to.
pub(crate) fn is_of(found: &Metadata, user: u32) -> bool {
    found.is_dir() && found.uid() == user && found.mode() & 0o002 == 0
}

/// Returns true for a directory of ours that no other user can write to.
fn is_own(found: &Metadata) -> bool {
    is_of(found, nix::unistd::geteuid().as_raw()) && found.mode() & 0o020 == 0
}

/// Returns true if the path is a directory of ours, and not a link to one.
pub(crate) fn is_ours(directory: &Path) -> bool {
    std::fs::symlink_metadata(directory).is_ok_and(|found| is_own(&found))
}

/// Directory of ours, held open. All operations use the checked directory, even if its path later leads elsewhere. Only
/// the user can access its files.
#[derive(Debug)]
pub struct OwnDirectory {
    folder: File,
    path: PathBuf,
}

impl OwnDirectory {
    /// Opens the directory, creating it if it is missing.
    ///
    /// # Errors
    /// Fails if the directory cannot be created, if its path is a link, or if it belongs to another user or is writable
    /// by others.
    pub fn make(path: &Path) -> Result<OwnDirectory> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        OwnDirectory::open(path, path.to_owned())
    }

    /// Opens a directory inside this one, and creates it if it is missing.
    ///
    /// # Errors
    /// As for [`make`](OwnDirectory::make).
    pub fn below(&self, name: &str) -> Result<OwnDirectory> {
        let path = self.name(name);
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => OwnDirectory::open(&path, self.path.join(name)),
        }
    }

    /// Opens an existing directory. `called`: its path in messages.
    fn open(path: &Path, called: PathBuf) -> Result<OwnDirectory> {
        let mut options = OpenOptions::new();
        let options = options
            .read(true)
            .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW);
        let folder = options.open(path).map_err(|error| {
            let is_link = std::fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
            if is_link {
                let why = "it is a symbolic link, which is not followed: name the directory itself";
                return Error::new(ErrorKind::PermissionDenied, why);
            }
            error
        })?;
        let found = folder.metadata()?;
        if !is_own(&found) {
            let why = format!(
                "it belongs to user {} and has mode {:03o}, so others can change its contents: it must belong to this user, and nobody else may write to it (chmod go-w)",
                found.uid(),
                found.mode() & 0o7777
            );
            return Err(Error::new(ErrorKind::PermissionDenied, why));
        }
        Ok(OwnDirectory {
            folder,
            path: called,
        })
    }

    /// Returns the path at which it was opened, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a path by which this process opens this entry and no other file.
    pub fn name(&self, name: &str) -> PathBuf {
        own_name(&self.folder).join(name)
    }

    /// Iterates over the entries of the directory.
    ///
    /// # Errors
    /// Errors of opendir(3).
    pub fn entries(&self) -> Result<impl Iterator<Item = std::fs::DirEntry>> {
        Ok(std::fs::read_dir(own_name(&self.folder))?.flatten())
    }

    /// Opens an existing file for reading.
    ///
    /// # Errors
    /// Errors of open(2), a link, or a file that is not regular.
    pub fn read(&self, name: &str) -> Result<File> {
        let mut options = OpenOptions::new();
        let options = options
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        only_regular(options.open(self.name(name))?)
    }

    /// Opens a permanent file in order to lock it, and creates the file if it is missing.
    ///
    /// # Errors
    /// Errors of open(2), a link, or a file that is not regular.
    pub fn lasting_file(&self, name: &str) -> Result<File> {
        let mut options = OpenOptions::new();
        let options = options.create(true).truncate(false).write(true).mode(0o600);
        let options = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        only_regular(options.open(self.name(name))?)
    }

    /// Writes a file atomically: it appears under its name only when it is complete, and replaces an existing file.
    ///
    /// # Errors
    /// Errors of open(2), write(2) and rename(2).
    pub fn write_whole(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let part = self.name(&part_of(name));
        // A killed process of ours left this file: no other user can create files here.
        let _ = std::fs::remove_file(&part);
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true).mode(0o600);
        let written = options
            .open(&part)
            .and_then(|mut file| file.write_all(bytes))
            .and_then(|()| std::fs::rename(&part, self.name(name)));
        if written.is_err() {
            let _ = std::fs::remove_file(&part);
        }
        written
    }

    /// Returns true for the name of an incomplete file.
    pub fn is_part(name: &str) -> bool {
        name.ends_with(PART)
    }

    /// Removes a file. If it is a link, removes the link and not its destination.
    ///
    /// # Errors
    /// Errors of unlink(2).
    pub fn remove(&self, name: &str) -> Result<()> {
        std::fs::remove_file(self.name(name))
    }
}

fn only_regular(file: File) -> Result<File> {
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(not_regular()),
    }
}

const PART: &str = ".part";

fn part_of(name: &str) -> String {
    format!("{name}{PART}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inside_root::tests::Scratch;
    use std::fs::{Permissions, read_to_string, set_permissions, write};
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).expect("there").mode() & 0o7777
    }

    #[test]
    fn files_are_for_the_user_alone_and_no_link_is_followed() {
        let scratch = Scratch::new("own");
        let path = scratch.0.join("a/b");
        let own = OwnDirectory::make(&path).expect("made");
        assert_eq!((mode(&path), mode(&scratch.0.join("a"))), (0o700, 0o700));
        let victim = scratch.0.join("victim");
        write(&victim, "theirs").expect("written");
        for name in ["file", "file.part", "lock"] {
            symlink(&victim, path.join(name)).expect("linked");
        }
        own.write_whole("file", b"ours").expect("written");
        assert_eq!(read_to_string(path.join("file")).expect("there"), "ours");
        assert_eq!(mode(&path.join("file")), 0o600);
        own.write_whole("file", b"newer").expect("written");
        assert_eq!(read_to_string(path.join("file")).expect("there"), "newer");
        assert!(own.lasting_file("lock").is_err() && own.read("lock").is_err());
        own.remove("lock").expect("removed");
        own.lasting_file("lock").expect("made");
        assert_eq!(mode(&path.join("lock")), 0o600);
        assert_eq!(read_to_string(&victim).expect("there"), "theirs");
        assert_eq!(own.entries().expect("readable").count(), 2);
        let mut text = String::new();
        let mut file = own.read("file").expect("there");
        std::io::Read::read_to_string(&mut file, &mut text).expect("text");
        assert_eq!(text, "newer");
        // A pipe does not block us.
        nix::unistd::mkfifo(&path.join("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("made");
        assert!(own.read("pipe").is_err());
        own.below("c").and_then(|own| own.below("d")).expect("made");
        assert_eq!(mode(&path.join("c/d")), 0o700);
        symlink(&scratch.0, path.join("elsewhere")).expect("linked");
        let error = own.below("elsewhere").expect_err("a link");
        assert!(error.to_string().contains("symbolic link"), "{error}");
    }

    #[test]
    fn what_others_can_change_is_refused() {
        let scratch = Scratch::new("others");
        let path = scratch.0.join("state");
        OwnDirectory::make(&path).expect("made");
        for (open, is_fine) in [
            (0o777, false),
            (0o1777, false),
            (0o770, false),
            (0o755, true),
        ] {
            set_permissions(&path, Permissions::from_mode(open)).expect("ours");
            assert_eq!(OwnDirectory::make(&path).is_ok(), is_fine, "{open:o}");
        }
        let link = scratch.0.join("link");
        symlink(&path, &link).expect("linked");
        let error = OwnDirectory::make(&link).expect_err("a link");
        assert!(error.to_string().contains("symbolic link"), "{error}");
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(65534), None).expect("root may");
            let error = OwnDirectory::make(&path).expect_err("another user's");
            assert!(error.to_string().contains("user 65534"), "{error}");
        }
    }

    /// The directory stays the same if its path later leads to a different one.
    #[test]
    fn it_stays_the_one_that_was_looked_at() {
        let scratch = Scratch::new("moved");
        let path = scratch.0.join("state");
        let own = OwnDirectory::make(&path).expect("made");
        let moved = scratch.0.join("moved");
        std::fs::rename(&path, &moved).expect("ours");
        std::fs::create_dir(&path).expect("made");
        own.write_whole("file", b"ours").expect("written");
        assert!(moved.join("file").exists() && !path.join("file").exists());
    }
}
