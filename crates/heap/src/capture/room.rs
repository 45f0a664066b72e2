//! How much memory may be taken: by a copy, from what this process may have; by writes to what a fork
//! shares, from what the target may have.

use memhook_foreign::size_text;
use std::path::{Path, PathBuf};

/// Memory that is to be had, and what sets the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes.
    pub bytes: u64,
    /// Whose they are.
    pub limit: String,
}

impl Room {
    /// Of a size that was asked for.
    pub fn of(bytes: u64) -> Room {
        Room {
            bytes,
            limit: "is allowed (--max-memory)".into(),
        }
    }

    /// What the machine, and the memory cgroups that a process is in, have for it now. `None` if nothing is
    /// told.
    pub fn for_process(pid: i32) -> Option<Room> {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let machine = available(&read("/proc/meminfo")).map(|bytes| Room {
            bytes,
            limit: "is available on this machine".into(),
        });
        let groups = read(&format!("/proc/{pid}/cgroup"));
        let groups = in_groups(Path::new("/sys/fs/cgroup"), &groups);
        machine.into_iter().chain(groups).min_by_key(|r| r.bytes)
    }
}

impl std::fmt::Display for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", size_text(self.bytes), self.limit)
    }
}

/// `MemAvailable` of /proc/meminfo (proc_meminfo(5)).
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// The tightest of the memory cgroups that /proc/PID/cgroup (cgroups(7)) names, all levels above them
/// included. `root`: where they are mounted.
fn in_groups(root: &Path, groups: &str) -> Option<Room> {
    let mut found: Vec<Room> = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (files, mounts): (_, &[&str]) = match controllers {
            // Version 2; beside version 1 it is often mounted one level down.
            "" => (&VERSION_2, &["", "unified"]),
            _ if controllers.split(',').any(|c| c == "memory") => (&VERSION_1, &["memory"]),
            _ => continue,
        };
        for mount in mounts {
            let top = root.join(mount);
            let parts = path.split('/').filter(|part| !part.is_empty());
            let mut level = top.clone();
            let mut levels: Vec<PathBuf> = vec![top];
            // Out of the cgroup namespace (cgroup_namespaces(7)): only the levels in it can be seen.
            for part in parts.filter(|&part| part != "..") {
                level.push(part);
                levels.push(level.clone());
            }
            found.extend(levels.iter().filter_map(|level| in_group(level, files)));
        }
    }
    found.into_iter().min_by_key(|room| room.bytes)
}

/// Limit, usage, and what of it is pages of files that the kernel gives up first
/// (Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst).
struct Files {
    limit: &'static str,
    usage: &'static str,
    reclaimable: &'static str,
}

const VERSION_2: Files = Files {
    limit: "memory.max",
    usage: "memory.current",
    reclaimable: "inactive_file",
};
const VERSION_1: Files = Files {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};

/// `None` where there is no limit.
fn in_group(level: &Path, files: &Files) -> Option<Room> {
    let read = |file: &str| std::fs::read_to_string(level.join(file)).ok();
    let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
    // "max" is none in version 2, a number near 2^63 in version 1.
    let limit = number(files.limit).filter(|&limit| limit < 1 << 62)?;
    let stat = read("memory.stat").unwrap_or_default();
    let reclaimable = stat
        .lines()
        .find_map(|line| line.strip_prefix(files.reclaimable)?.trim().parse().ok());
    let used = number(files.usage)?.saturating_sub(reclaimable.unwrap_or(0));
    Some(Room {
        bytes: limit.saturating_sub(used),
        limit: format!("is left in the memory cgroup {}", level.display()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(level: &Path, files: &Files, limit: &str, used: &str, stat: &str) {
        std::fs::create_dir_all(level).unwrap();
        std::fs::write(level.join(files.limit), limit).unwrap();
        std::fs::write(level.join(files.usage), used).unwrap();
        std::fs::write(level.join("memory.stat"), stat).unwrap();
    }

    #[test]
    fn the_tightest_level_counts() {
        let root = std::env::temp_dir().join(format!("memhook-room-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        group(&root.join("a"), &VERSION_2, "1000\n", "700\n", "anon 1\n");
        let stat = "file 500\ninactive_file 300\ntotal_inactive_file 9\n";
        group(&root.join("a/b"), &VERSION_2, "5000\n", "4600\n", stat);
        group(&root.join("a/c"), &VERSION_2, "max\n", "9\n", "");
        group(
            &root.join("memory/x"),
            &VERSION_1,
            "200\n",
            "150\n",
            "total_inactive_file 30\n",
        );
        let bytes = |text: &str| in_groups(&root, text).map(|r| r.bytes);
        assert_eq!(bytes("0::/a/b\n"), Some(300), "the level above is tighter");
        assert_eq!(bytes("0::/a/c\n"), Some(300), "no limit of its own");
        assert_eq!(bytes("5:cpu,memory:/x\n0::/a/b\n"), Some(80));
        assert_eq!(bytes("5:cpu:/x\nrubbish\n"), None);
        assert_eq!(bytes("0::/../../a\n"), Some(300), "of another namespace");
        let room = in_groups(&root, "0::/a\n").unwrap().to_string();
        assert!(
            room.contains("300 B is left in the memory cgroup"),
            "{room}"
        );
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn of_this_machine() {
        let text = "MemTotal: 9 kB\nMemAvailable:   24200404 kB\n";
        assert_eq!(available(text), Some(24_200_404 << 10));
        assert!(Room::for_process(std::process::id() as i32).is_some_and(|r| r.bytes > 0));
    }
}
