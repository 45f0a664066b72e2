//! The few facts of /proc/PID/maps this crate needs.

use crate::Error;

/// One line of /proc/PID/maps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub start_avma: u64,
    pub end_avma: u64,
    pub executable: bool,
    pub writable: bool,
    pub file_offset: u64,
    pub inode: u64,
    /// Path or pseudo name such as `[vdso]`; empty for anonymous memory.
    pub name: String,
}

/// All mappings of `pid`.
pub(crate) fn read(pid: i32) -> Result<Vec<Mapping>, Error> {
    let path = format!("/proc/{pid}/maps");
    // Names may hold bytes that are not UTF-8, so read bytes.
    let bytes = std::fs::read(&path).map_err(|source| match source.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => Error::TargetGone { pid },
        _ => Error::File { path, source },
    })?;
    Ok(String::from_utf8_lossy(&bytes)
        .lines()
        .filter_map(parse_line)
        .collect())
}

/// Whether a mapping's name is that of the C library: `libc.so.6`, `libc-2.31.so`, musl's loader.
pub(crate) fn is_libc(name: &str) -> bool {
    let file = name
        .trim_end_matches(" (deleted)")
        .rsplit('/')
        .next()
        .unwrap_or_default();
    file.starts_with("libc.so")
        || file.starts_with("libc-2.")
        || file.starts_with("ld-musl-")
        || file.starts_with("libc.musl-")
}

/// `start-end perms offset dev inode   name` (proc_pid_maps(5)).
fn parse_line(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut field = || {
        rest = rest.trim_start_matches(' ');
        let end = rest.find(' ').unwrap_or(rest.len());
        let (head, tail) = rest.split_at(end);
        rest = tail;
        head
    };
    let (start, end) = field().split_once('-')?;
    let permissions = field();
    let file_offset = u64::from_str_radix(field(), 16).ok()?;
    field();
    let inode = field().parse().ok()?;
    Some(Mapping {
        start_avma: u64::from_str_radix(start, 16).ok()?,
        end_avma: u64::from_str_radix(end, 16).ok()?,
        executable: permissions.contains('x'),
        writable: permissions.contains('w'),
        file_offset,
        inode,
        name: rest.trim_start_matches(' ').to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_is_kept_whole() {
        let line = "7f00-8000 r-xp 00001000 00:01 42                 /memfd:a b (deleted)";
        let mapping = parse_line(line).unwrap();
        assert_eq!(mapping.name, "/memfd:a b (deleted)");
        assert_eq!((mapping.start_avma, mapping.end_avma), (0x7f00, 0x8000));
        assert_eq!(
            (mapping.file_offset, mapping.inode, mapping.executable),
            (0x1000, 42, true)
        );
    }

    #[test]
    fn own_mappings_hold_this_function() {
        let here = own_mappings_hold_this_function as fn() as usize as u64;
        let all = read(std::process::id() as i32).unwrap();
        assert!(
            all.iter()
                .any(|m| m.executable && (m.start_avma..m.end_avma).contains(&here))
        );
        assert_eq!(parse_line("nonsense"), None);
    }
}
