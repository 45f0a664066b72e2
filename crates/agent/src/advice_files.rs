//! Files with the latest advice on each process, in the directory of profiles.

use crate::board::Identity;
use crate::config::Files;
use memhook_foreign::OwnDirectory;
use std::io::{ErrorKind, Result};
use std::time::SystemTime;

/// Prefix and suffix of the files' names. They keep other files from being mistaken for ours.
const BEGIN: &str = "memhook-";
const END: &str = ".advice.json";

/// Writes a document in place of the previous one. Removes the oldest documents of other processes
/// beyond the configured number.
pub fn write(files: &Files, identity: &Identity, document: &str) -> Result<()> {
    let own = OwnDirectory::make(&files.directory)?;
    let plain = |c: char| match c.is_ascii_alphanumeric() || c == '_' {
        true => c,
        false => '_',
    };
    let service: String = identity.service.chars().map(plain).take(100).collect();
    let name = format!("{BEGIN}{service}-{}{END}", identity.pid);
    own.write_whole(&name, document.as_bytes())?;
    let is_ours = |name: &str| name.starts_with(BEGIN) && name.ends_with(END);
    remove_oldest(&own, is_ours, files.keep.max(1) as usize)
}

/// Removes the oldest of our files beyond the number to keep, recognizing them by name.
pub fn remove_oldest(
    own: &OwnDirectory,
    is_ours: impl Fn(&str) -> bool,
    keep: usize,
) -> Result<()> {
    let mut found = Vec::new();
    for entry in own.entries()? {
        let name = entry.file_name().to_string_lossy().into_owned();
        if is_ours(&name)
            && let Ok(metadata) = entry.metadata()
            && metadata.is_file()
        {
            let time = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            found.push((time, name));
        }
    }
    found.sort();
    let more = found.len().saturating_sub(keep);
    for (_, name) in found.into_iter().take(more) {
        match own.remove(&name) {
            // The thread that handles another process has already removed the file.
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::File;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_last_documents_are_kept() {
        let directory = std::env::temp_dir().join(format!("memhook-advice-{}", std::process::id()));
        let text = format!(
            "[files]\ndirectory = \"{}\"\nkeep = 2\n",
            directory.display()
        );
        let file: File = toml::from_str(&text).expect("right");
        let files = file.files.expect("files");
        let of = |pid| Identity {
            pid,
            service: "../a shop".into(),
            ..Identity::default()
        };
        for (pid, document) in [(7, "old"), (7, "new"), (8, "x"), (9, "y")] {
            write(&files, &of(pid), document).expect("written");
            if pid == 7 {
                let path = directory.join("memhook-___a_shop-7.advice.json");
                assert_eq!(std::fs::read_to_string(&path).expect("a file"), document);
                let mode = std::fs::metadata(&path).expect("a file").permissions();
                assert_eq!(mode.mode() & 0o777, 0o600);
            }
            // The resolution of file times is a tick of the kernel.
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let entries = std::fs::read_dir(&directory).expect("a directory");
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        let mut names: Vec<_> = names.collect();
        names.sort();
        std::fs::remove_dir_all(&directory).expect("removed");
        let kept = [
            "memhook-___a_shop-8.advice.json",
            "memhook-___a_shop-9.advice.json",
        ];
        assert_eq!(names, kept);
    }
}
