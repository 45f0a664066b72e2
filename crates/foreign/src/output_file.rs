//! Files that we create.
//!
//! They contain a process's memory, or names from it, so only the user may read them. Other users may be able to write
//! to the directory (/tmp), and may have created a link, a pipe or their own file under the name.

use crate::output_error::{OutputError, exists_already, failed, link, not_ours};
use crate::output_stream::{own_descriptor, stream};
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::linkat;
use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{Error, ErrorKind, Result},
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

/// Refuses an output before any work is done, if it is also an input, and so might be overwritten, or if it exists and
/// must not be replaced (`replace`).
///
/// # Errors
/// [`OutputError::IsInput`], [`OutputError::Exists`]
pub fn check_output<P: AsRef<Path>>(
    output: impl IntoIterator<Item = P>,
    replace: bool,
    inputs: impl IntoIterator<Item = P> + Clone,
) -> std::result::Result<(), OutputError> {
    let id = |path: &Path| std::fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    for output in output {
        let path = output.as_ref();
        let is_it = |input: P| id(path).is_some_and(|of| Some(of) == id(input.as_ref()));
        if inputs.clone().into_iter().any(is_it) {
            return Err(OutputError::IsInput { path: path.into() });
        }
        let is_file = std::fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
        if is_file && !replace {
            return Err(exists_already(path));
        }
    }
    Ok(())
}

/// Returns true for a regular file that is executable for any user.
pub fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.mode() & 0o111 != 0)
}

/// Creates an unnamed file in the directory for temporary files. It vanishes when it is closed (open(2), O_TMPFILE).
///
/// # Errors
/// Errors of open(2), with the directory.
pub fn unnamed_file() -> Result<File> {
    unnamed_file_in(&std::env::temp_dir())
}

/// Like [`unnamed_file`], in another directory. On file systems that do not support unnamed files, creates a file and
/// removes its name immediately.
///
/// # Errors
/// Errors of open(2), with the directory.
pub fn unnamed_file_in(directory: &Path) -> Result<File> {
    let removed = || {
        let (file, name) = beside(&directory.join("unnamed"))?;
        std::fs::remove_file(name).map(|()| file)
    };
    let made = without_name(directory).or_else(|_| removed());
    made.map_err(|error| {
        let why = format!(
            "cannot create a temporary file in {}: {error}",
            directory.display()
        );
        Error::new(error.kind(), why)
    })
}

/// Creates an unnamed file that can get a name later.
fn without_name(directory: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).mode(0o600);
    options.custom_flags(libc::O_TMPFILE).open(directory)
}

/// Returns the path by which this process can open its own file again.
pub fn own_name(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Output, open for writing. [Keep](OutputFile::keep) it with its first contents; until then, an existing file is
/// untouched.
#[derive(Debug)]
pub struct OutputFile {
    file: File,
    path: PathBuf,
    standing: Standing,
}

#[derive(Debug, PartialEq, Eq)]
enum Standing {
    /// Unnamed until it is kept: if we are killed before that, nothing remains of it.
    Unnamed,
    /// New, at its path, and ours.
    New,
    /// Next to its path, under this name.
    Beside(PathBuf),
    /// Open at its path: a file that existed before, or a pipe, a terminal or the like.
    There,
}

impl OutputFile {
    /// Creates a file for its owner only. Refuses an existing file unless `replace` is true: then keeping the new file
    /// replaces the old one. Terminals, pipes and other streams of the user are opened directly.
    ///
    /// # Errors
    /// [`OutputError`]
    pub fn create(path: &Path, replace: bool) -> std::result::Result<OutputFile, OutputError> {
        if is_free(path)
            && let Ok(file) = without_name(directory_of(path))
            && own_name(&file).exists()
        {
            return Ok(OutputFile::at(path, file, Standing::Unnamed));
        }
        if let Some(output) = OutputFile::without_old(path)? {
            return Ok(output);
        }
        let found = std::fs::symlink_metadata(path).map_err(failed(path))?;
        if found.is_file() && replace {
            let (file, beside) = beside(path).map_err(failed(path))?;
            return Ok(OutputFile::at(path, file, Standing::Beside(beside)));
        }
        if found.is_file() {
            return Err(exists_already(path));
        }
        stream(path, &found).map(|file| OutputFile::there(path, file))
    }

    /// Opens a file that several runs write to, such as the report of a build. Keeps an existing file, with its owner
    /// and permissions, and appends to it. In a directory that other users can write to, the file must belong to the
    /// user, and symbolic links are not followed.
    ///
    /// # Errors
    /// [`OutputError`]
    pub fn reopen(path: &Path) -> std::result::Result<OutputFile, OutputError> {
        if let Some(output) = OutputFile::without_old(path)? {
            return Ok(output);
        }
        let is_public = is_in_public_directory(path);
        let look = if is_public {
            std::fs::symlink_metadata(path)
        } else {
            std::fs::metadata(path)
        };
        let found = match look {
            // A link to a missing file.
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(link(path)),
            found => found.map_err(failed(path))?,
        };
        if !found.is_file() {
            return stream(path, &found).map(|file| OutputFile::there(path, file));
        }
        let no_link = if is_public { libc::O_NOFOLLOW } else { 0 };
        let mut options = OpenOptions::new();
        let options = options
            .append(true)
            .custom_flags(no_link | libc::O_NONBLOCK);
        let file = options.open(path).map_err(failed(path))?;
        // The file may have been exchanged since the check.
        let opened = file.metadata().map_err(failed(path))?;
        if !opened.is_file() {
            return Err(not_ours(path, "not a regular file"));
        }
        if is_public && (opened.uid() != own_user() || opened.nlink() != 1) {
            return Err(not_ours(
                path,
                "a file of another user in a shared directory",
            ));
        }
        Ok(OutputFile::there(path, file))
    }

    /// Opens an output that replaces nothing: a descriptor of ours, or a new file.
    fn without_old(path: &Path) -> std::result::Result<Option<OutputFile>, OutputError> {
        if let Some(file) = own_descriptor(path)? {
            return Ok(Some(OutputFile::there(path, file)));
        }
        match new_file(path) {
            Ok(file) => Ok(Some(OutputFile::at(path, file, Standing::New))),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(failed(path)(error)),
        }
    }

    fn at(path: &Path, file: File, standing: Standing) -> OutputFile {
        OutputFile {
            file,
            path: path.to_owned(),
            standing,
        }
    }

    fn there(path: &Path, file: File) -> OutputFile {
        OutputFile::at(path, file, Standing::There)
    }

    /// Puts the file in its place, and returns it for writing.
    ///
    /// # Errors
    /// An existing file cannot be replaced.
    pub fn keep(mut self) -> Result<File> {
        match &self.standing {
            Standing::Beside(beside) => std::fs::rename(beside, &self.path)?,
            // open(2) recommends this for O_TMPFILE. It does not overwrite a file that has appeared meanwhile.
            Standing::Unnamed => linkat(
                AT_FDCWD,
                &own_name(&self.file),
                AT_FDCWD,
                &self.path,
                AtFlags::AT_SYMLINK_FOLLOW,
            )?,
            Standing::New | Standing::There => {}
        }
        self.standing = Standing::There;
        self.file.try_clone()
    }

    /// Returns the open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns true if no file was at the path before.
    pub fn is_new(&self) -> bool {
        matches!(self.standing, Standing::New | Standing::Unnamed)
    }
}

/// Removes a file that was not kept.
impl Drop for OutputFile {
    fn drop(&mut self) {
        let path = match &self.standing {
            Standing::New => &self.path,
            Standing::Beside(beside) => beside,
            Standing::There | Standing::Unnamed => return,
        };
        let _ = std::fs::remove_file(path);
    }
}

/// Returns true if nothing exists at a path, but its directory exists.
fn is_free(path: &Path) -> bool {
    let found = std::fs::symlink_metadata(path);
    path.file_name().is_some() && found.is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

fn directory_of(path: &Path) -> &Path {
    let directory = path.parent();
    let directory = directory.filter(|directory| !directory.as_os_str().is_empty());
    directory.unwrap_or(Path::new("."))
}

/// O_EXCL follows no link (open(2)).
fn new_file(path: &Path) -> Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

/// Creates a file in the same directory, which a rename can put in place of the old file.
fn beside(path: &Path) -> Result<(File, PathBuf)> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let mut last = Error::from(ErrorKind::AlreadyExists);
    // A killed process with our id may have left some.
    for _ in 0..100 {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut name = OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(format!(".{}.{number}", std::process::id()));
        let beside = path.with_file_name(name);
        match new_file(&beside) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => last = error,
            made => return made.map(|file| (file, beside)),
        }
    }
    Err(last)
}

fn own_user() -> u32 {
    nix::unistd::geteuid().as_raw()
}

/// Returns true if every user may write to the directory of a path.
fn is_in_public_directory(path: &Path) -> bool {
    let metadata = std::fs::metadata(directory_of(path));
    metadata.is_ok_and(|metadata| metadata.mode() & 0o002 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inside_root::tests::Scratch;
    use std::fs::{read_to_string, write};
    use std::io::{Read, Write};
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn put(path: &Path, replace: bool, text: &str) -> std::result::Result<(), OutputError> {
        let file = OutputFile::create(path, replace)?;
        file.keep().unwrap().write_all(text.as_bytes()).unwrap();
        Ok(())
    }

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    fn names(folder: &Path) -> usize {
        std::fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn for_the_owner_alone_and_never_over_a_file() {
        let scratch = Scratch::new("output");
        let path = scratch.0.join("out");
        put(&path, false, "first").unwrap();
        assert_eq!(mode(&path), 0o600);
        let error = put(&path, false, "second").unwrap_err();
        assert!(matches!(error, OutputError::Exists { .. }), "{error}");
        assert_eq!(read_to_string(&path).unwrap(), "first");
        // A new file replaces the old one. A process that has opened the old file, or uses another name of it, does not
        // see the new file.
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        let other = scratch.0.join("other");
        std::fs::hard_link(&path, &other).unwrap();
        put(&path, true, "second").unwrap();
        assert_eq!(
            (mode(&path), read_to_string(&path).unwrap()),
            (0o600, "second".into())
        );
        assert_eq!(read_to_string(&other).unwrap(), "first");
        assert_eq!(names(&scratch.0), 2);
    }

    #[test]
    fn what_is_not_kept_leaves_all_as_it_was() {
        let scratch = Scratch::new("abandoned");
        let (old, new) = (scratch.0.join("old"), scratch.0.join("new"));
        write(&old, "old").unwrap();
        for path in [&old, &new] {
            drop(OutputFile::create(path, true).unwrap());
            drop(OutputFile::reopen(path).unwrap());
        }
        assert_eq!(read_to_string(&old).unwrap(), "old");
        assert_eq!(names(&scratch.0), 1);
    }

    /// The file has no name until it is kept, so that nothing remains of it if we are killed.
    #[test]
    fn a_new_output_gets_its_name_at_the_end() {
        let scratch = Scratch::new("unnamed");
        let path = scratch.0.join("out");
        let output = OutputFile::create(&path, false).unwrap();
        assert!(output.is_new());
        assert_eq!(names(&scratch.0), 0);
        output.file().write_all(b"early, ").unwrap();
        // Another process creates the file first.
        write(&path, "theirs").unwrap();
        let error = output.keep().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert_eq!(read_to_string(&path).unwrap(), "theirs");
        std::fs::remove_file(&path).unwrap();
        let output = OutputFile::create(&path, false).unwrap();
        output.file().write_all(b"early, ").unwrap();
        output.keep().unwrap().write_all(b"late").unwrap();
        assert_eq!(read_to_string(&path).unwrap(), "early, late");
        assert_eq!((mode(&path), names(&scratch.0)), (0o600, 1));
        let mut unnamed = unnamed_file_in(&scratch.0).unwrap();
        unnamed.write_all(b"x").unwrap();
        assert_eq!(names(&scratch.0), 1);
        assert_eq!(read_to_string(own_name(&unnamed)).unwrap(), "x");
    }

    #[test]
    fn no_link_is_followed() {
        let scratch = Scratch::new("links");
        let (victim, link, dangling) = (
            scratch.0.join("victim"),
            scratch.0.join("link"),
            scratch.0.join("dangling"),
        );
        write(&victim, "mine").unwrap();
        symlink(&victim, &link).unwrap();
        symlink(scratch.0.join("none"), &dangling).unwrap();
        for path in [&link, &dangling] {
            for replace in [false, true] {
                let error = put(path, replace, "x").unwrap_err();
                assert!(error.to_string().contains("symbolic link"), "{error}");
            }
        }
        // In a public directory, the outputs of builds do not follow links either.
        std::fs::set_permissions(&scratch.0, PermissionsExt::from_mode(0o1777)).unwrap();
        for path in [&link, &dangling] {
            let error = OutputFile::reopen(path).unwrap_err();
            assert!(error.to_string().contains("symbolic link"), "{error}");
        }
        let named = scratch.0.join("second-name");
        std::fs::hard_link(&victim, &named).unwrap();
        let error = OutputFile::reopen(&named).unwrap_err();
        assert!(error.to_string().contains("another user"), "{error}");
        assert_eq!(read_to_string(&victim).unwrap(), "mine");
        assert!(!scratch.0.join("none").exists());
    }

    #[test]
    fn outputs_of_builds_are_written_again() {
        let scratch = Scratch::new("builds");
        let (path, link) = (scratch.0.join("junit.xml"), scratch.0.join("link"));
        let add = |path: &Path, text: &str| {
            let file = OutputFile::reopen(path).unwrap().keep();
            file.unwrap().write_all(text.as_bytes()).unwrap();
        };
        add(&path, "a");
        assert_eq!(mode(&path), 0o600);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        symlink("junit.xml", &link).unwrap();
        add(&path, "b");
        add(&link, "c");
        assert_eq!(
            (mode(&path), read_to_string(&path).unwrap()),
            (0o644, "abc".into())
        );
    }

    #[test]
    fn streams_are_used_as_they_are() {
        let scratch = Scratch::new("streams");
        let pipe = scratch.0.join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for open in [|p: &Path| OutputFile::create(p, false), OutputFile::reopen] {
            let to = pipe.clone();
            let reader = std::thread::spawn(move || read_to_string(to).unwrap());
            let file = open(&pipe).unwrap().keep();
            file.unwrap().write_all(b"through").unwrap();
            assert_eq!(reader.join().unwrap(), "through");
            put(Path::new("/dev/null"), false, "x").unwrap();
            assert!(open(&scratch.0).is_err());
        }
        let (mut from, to) = std::io::pipe().unwrap();
        let name = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&to));
        put(Path::new(&name), false, "through").unwrap();
        drop(to);
        let mut text = String::new();
        from.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
        assert_eq!(mode(&pipe), 0o700);
    }
}
