//! A file of ours to which each run appends lines.

use crate::output_error::{OutputError, failed};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Opens a file to append to it. Creates it for its owner alone if it is missing. Refuses a link or a file that other
/// users may write, because another user could then choose the destination.
///
/// # Errors
/// Errors of open(2); and if it is a link, not a regular file, another user's, or writable by others.
pub fn open_appended(path: &Path) -> Result<File, OutputError> {
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink()) {
        let path = path.to_owned();
        return Err(OutputError::Link { path });
    }
    let mut options = OpenOptions::new();
    let options = options.create(true).append(true).mode(0o600);
    let options = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path).map_err(failed(path))?;
    let found = file.metadata().map_err(failed(path))?;
    let own = nix::unistd::geteuid().as_raw();
    let what = if !found.is_file() {
        "not a regular file"
    } else if found.uid() != own {
        "another user's"
    } else if found.mode() & 0o022 != 0 {
        "writable by others (chmod go-w)"
    } else {
        return Ok(file);
    };
    let path = path.to_owned();
    Err(OutputError::NotOurs { path, what })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn it_is_appended_to_and_nothing_else_is() {
        let folder = std::env::temp_dir().join(format!("memhook-appended-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("lines");
        for line in ["one\n", "two\n"] {
            open_appended(&path)
                .unwrap()
                .write_all(line.as_bytes())
                .unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"one\ntwo\n");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        symlink(&path, folder.join("link")).unwrap();
        assert!(matches!(
            open_appended(&folder.join("link")),
            Err(OutputError::Link { .. })
        ));
        assert!(open_appended(&folder).is_err());
        let refused = open_appended(Path::new("/dev/null")).unwrap_err();
        assert!(
            refused.to_string().contains("not a regular file"),
            "{refused}"
        );
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o620)).unwrap();
        let refused = open_appended(&path).unwrap_err();
        assert!(refused.to_string().contains("chmod go-w"), "{refused}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
