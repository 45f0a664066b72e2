//! `/proc/PID/maps` (proc_pid_maps(5)).

use crate::{Error, proc_text, threads::by_living_thread};

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Address after the last one.
    pub end: u64,
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// Executable.
    pub exec: bool,
    /// True for a shared mapping.
    pub shared: bool,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Device and inode of the file; an inode of 0 means that there is no file.
    pub file_id: (u32, u32, u64),
    /// Path, `[stack]` or a similar name, or nothing. The kernel's mark for a deleted file is
    /// removed.
    pub path: String,
    /// True if the file has been deleted.
    pub deleted: bool,
}

impl Mapping {
    /// Returns true if it contains an address (avma).
    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// Returns true if both belong to the same file.
    pub fn is_same_file(&self, other: &Mapping) -> bool {
        self.file_id.2 != 0 && self.file_id == other.file_id
    }
}

/// Returns the mappings of a process, in address order.
pub fn mappings(pid: i32) -> Result<Vec<Mapping>, Error> {
    let text = by_living_thread(pid, "maps", |path| proc_text(path), String::is_empty)?;
    Ok(parse_maps(&text))
}

/// Parses the text of a maps file; lines that are not mappings are skipped.
pub fn parse_maps(text: &str) -> Vec<Mapping> {
    text.lines().filter_map(parse_line).collect()
}

pub(crate) fn parse_line(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let flags = fields.next()?.as_bytes();
    let offset = fields.next()?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let inode = fields.next()?;
    let path = fields.next().unwrap_or("").trim_start();
    let (path, deleted) = match path.strip_suffix(" (deleted)") {
        Some(path) => (path, true),
        None => (path, false),
    };
    let hex = |s| u64::from_str_radix(s, 16).ok();
    if flags.len() < 4 {
        return None;
    }
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        read: flags[0] == b'r',
        write: flags[1] == b'w',
        exec: flags[2] == b'x',
        shared: flags[3] == b's',
        offset: hex(offset)?,
        file_id: (
            u32::from_str_radix(major, 16).ok()?,
            u32::from_str_radix(minor, 16).ok()?,
            inode.parse().ok()?,
        ),
        path: path.to_owned(),
        deleted,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn own_maps() {
        let maps = mappings(std::process::id() as i32).unwrap();
        assert!(maps.iter().any(|m| m.path == "[stack]" && m.write));
        assert!(maps.windows(2).all(|w| w[0].end <= w[1].start));
    }

    #[test]
    fn a_deleted_file_and_a_path_with_spaces() {
        let m = &parse_maps(
            "7f00-8f00 r-xp 00001000 fe:01 42                         /a dir/x y.so (deleted)\n",
        )[0];
        assert_eq!(m.path, "/a dir/x y.so");
        assert!(m.deleted && m.exec && !m.write && !m.shared);
        assert_eq!(m.file_id, (0xfe, 1, 42));
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,200}") {
            parse_maps(&text);
        }
    }
}
