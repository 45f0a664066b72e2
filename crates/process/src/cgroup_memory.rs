//! Memory that a process may still use according to its control groups. Considers versions 1 and 2, and all levels.
//!
//! A process that exceeds its limit is killed, so this is checked before any memory is touched.

use crate::{proc_path, proc_text};
use std::fmt;
use std::path::{Component, Path, PathBuf};

/// One control group with a limit, or the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLevel {
    /// Directory of the group; `/` is the machine.
    pub path: PathBuf,
    /// Limit in bytes; for the machine, its whole memory.
    pub limit: u64,
    /// Bytes still available, including page cache that can be dropped immediately.
    pub free: u64,
}

impl MemoryLevel {
    /// Returns the bytes in use that cannot be dropped immediately.
    pub fn used(&self) -> u64 {
        self.limit.saturating_sub(self.free)
    }

    /// Returns the used share of the limit.
    pub fn share(&self) -> f64 {
        self.used() as f64 / self.limit.max(1) as f64
    }

    /// Returns true if this level is the machine rather than a control group.
    pub fn is_machine(&self) -> bool {
        self.path == Path::new("/")
    }
}

/// Describes where the free memory is, in words that follow an amount: "is left in the memory cgroup /sys/fs/cgroup/x".
impl fmt::Display for MemoryLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_machine() {
            f.write_str("is available on this machine")
        } else {
            write!(f, "is left in the memory cgroup {}", self.path.display())
        }
    }
}

/// Memory limits of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupMemory {
    /// Groups with a limit, the process's own first.
    pub levels: Vec<MemoryLevel>,
    /// Directory of the process's own memory control group, if it has one that is visible.
    group: Option<PathBuf>,
}

impl CgroupMemory {
    /// Reads the limits of a process. If they cannot be read, the result has no limits.
    pub fn of(pid: i32) -> CgroupMemory {
        let groups = proc_text(proc_path(pid, "cgroup")).unwrap_or_default();
        let mounts = proc_text("/proc/self/mountinfo").unwrap_or_default();
        CgroupMemory::find(&groups, &mounts, Path::new("/"))
    }

    /// Returns the limits of two processes. Reads them only once if both are in the same groups, as a program and the
    /// process that started it usually are.
    pub fn of_both(one: i32, other: i32) -> [CgroupMemory; 2] {
        let groups = |pid: i32| proc_text(proc_path(pid, "cgroup")).unwrap_or_default();
        let mounts = proc_text("/proc/self/mountinfo").unwrap_or_default();
        let find = |groups: &str| CgroupMemory::find(groups, &mounts, Path::new("/"));
        let (of_one, of_other) = (groups(one), groups(other));
        let found = find(&of_one);
        let is_same = of_one == of_other;
        let other = if is_same {
            found.clone()
        } else {
            find(&of_other)
        };
        [found, other]
    }

    /// Finds the limits from the text of `/proc/PID/cgroup` (cgroups(7)) and of `/proc/self/mountinfo`
    /// (proc_pid_mountinfo(5)); mount points are searched below `root`.
    pub fn find(groups: &str, mounts: &str, root: &Path) -> CgroupMemory {
        let mut found = CgroupMemory::default();
        for (version, top, directory) in places(groups, mounts, root) {
            if found.group.is_none() && directory.join(version.usage()).is_file() {
                found.group = Some(directory.clone());
            }
            let levels = directory.ancestors().take_while(|d| d.starts_with(&top));
            found.levels.extend(levels.filter_map(|d| version.level(d)));
        }
        found
    }

    /// Finds a process's own group, without reading limits.
    pub fn without_limits(pid: i32) -> CgroupMemory {
        let groups = proc_text(proc_path(pid, "cgroup")).unwrap_or_default();
        let mounts = proc_text("/proc/self/mountinfo").unwrap_or_default();
        let mut places = places(&groups, &mounts, Path::new("/"));
        let own = places.find(|(version, _, directory)| directory.join(version.usage()).is_file());
        CgroupMemory {
            levels: Vec::new(),
            group: own.map(|(_, _, directory)| directory),
        }
    }

    /// Returns the level with the least memory left, if any has a limit.
    pub fn tightest(&self) -> Option<&MemoryLevel> {
        self.levels.iter().min_by_key(|level| level.free)
    }

    /// Returns the tightest level, including the whole machine.
    pub fn tightest_of_all(&self) -> Option<MemoryLevel> {
        let text = proc_text("/proc/meminfo").unwrap_or_default();
        self.levels
            .iter()
            .cloned()
            .chain(machine(&text))
            .min_by_key(|level| level.free)
    }

    /// Returns the current levels. If no group has a limit, the machine is the only level.
    pub fn now(&self) -> Vec<MemoryLevel> {
        let level = |directory: &Path| {
            let versions = [Version::One, Version::Two].into_iter();
            versions
                .filter_map(|version| version.level(directory))
                .next()
        };
        let levels: Vec<MemoryLevel> = self
            .levels
            .iter()
            .filter_map(|found| level(&found.path))
            .collect();
        if self.levels.is_empty() {
            let text = proc_text("/proc/meminfo").unwrap_or_default();
            return machine(&text).into_iter().collect();
        }
        levels
    }

    /// Returns the level that is closest to its limit at this moment.
    pub fn fullest_now(&self) -> Option<MemoryLevel> {
        let levels = self.now().into_iter();
        levels.max_by(|a, b| a.share().total_cmp(&b.share()))
    }

    /// Returns the number of processes that the kernel killed for lack of memory in the process's own group.
    pub fn kills(&self) -> Option<u64> {
        let group = self.group.as_ref()?;
        ["memory.events", "memory.oom_control"]
            .iter()
            .find_map(|file| field(&group.join(file), "oom_kill"))
    }

    /// Returns the directory of its own group.
    pub fn group(&self) -> Option<&Path> {
        self.group.as_deref()
    }
}

/// Returns the directories of a process's groups, each with the top of its mount. If both versions are mounted, the
/// controller is in only one of them.
fn places<'a>(
    groups: &'a str,
    mounts: &'a str,
    root: &'a Path,
) -> impl Iterator<Item = (Version, PathBuf, PathBuf)> + 'a {
    [Version::One, Version::Two]
        .into_iter()
        .filter_map(move |version| {
            let group = version.group(groups)?;
            let mut mounts = mounts.lines().filter_map(|line| version.mount(line));
            let (mount, below) =
                mounts.find_map(|mount| Some((mount.point, below(group, mount.root)?)))?;
            let top = root.join(mount.trim_start_matches('/'));
            let directory = top.join(below);
            Some((version, top, directory))
        })
}

/// Parses /proc/meminfo (proc_meminfo(5)).
fn machine(text: &str) -> Option<MemoryLevel> {
    let kib = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Some(MemoryLevel {
        path: PathBuf::from("/"),
        limit: kib("MemTotal:")? * 1024,
        free: kib("MemAvailable:")? * 1024,
    })
}

/// Reads a number from a file of names and numbers.
fn field(file: &Path, name: &str) -> Option<u64> {
    let text = proc_text(file).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
        .and_then(|number| number.trim().parse().ok())
}

fn number(file: &Path) -> Option<u64> {
    proc_text(file).ok()?.trim().parse().ok()
}

/// Returns the part of a group's path below a mount's root; `None` if it is elsewhere.
fn below<'a>(group: &'a str, root: &str) -> Option<&'a Path> {
    let below = Path::new(group).strip_prefix(root).ok()?;
    // A group outside our cgroup namespace is shown by a path with `..` (cgroup_namespaces(7)).
    let plain = |part: Component| matches!(part, Component::Normal(_));
    below.components().all(plain).then_some(below)
}

struct Mount<'a> {
    root: &'a str,
    point: &'a str,
}

#[derive(Clone, Copy)]
enum Version {
    One,
    Two,
}

impl Version {
    /// Returns the path of the group in /proc/PID/cgroup.
    fn group(self, groups: &str) -> Option<&str> {
        groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (number, controllers) = (fields.next()?, fields.next()?);
            let path = fields.next()?;
            let fits = match self {
                Version::One => controllers.split(',').any(|name| name == "memory"),
                Version::Two => number == "0" && controllers.is_empty(),
            };
            fits.then_some(path)
        })
    }

    fn mount(self, line: &str) -> Option<Mount<'_>> {
        let (mount, kind) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (mount.next()?, mount.next()?);
        let mut kind = kind.split(' ');
        let (file_system, options) = (kind.next()?, kind.nth(1)?);
        let fits = match self {
            Version::One => {
                file_system == "cgroup" && options.split(',').any(|option| option == "memory")
            }
            Version::Two => file_system == "cgroup2",
        };
        fits.then_some(Mount { root, point })
    }

    fn usage(self) -> &'static str {
        match self {
            Version::One => "memory.usage_in_bytes",
            Version::Two => "memory.current",
        }
    }

    /// Returns the limit of one group: the lowest of its limits.
    fn level(self, directory: &Path) -> Option<MemoryLevel> {
        let usage = number(&directory.join(self.usage()))?;
        let stat = directory.join("memory.stat");
        // The kernel first reclaims file pages that were not used again.
        let (limits, droppable): (&[(&str, Option<&str>)], _) = match self {
            Version::One => (
                &[
                    ("memory.limit_in_bytes", None),
                    (
                        "memory.memsw.limit_in_bytes",
                        Some("memory.memsw.usage_in_bytes"),
                    ),
                ],
                field(&stat, "total_inactive_file"),
            ),
            // Above memory.high a process is throttled without bound.
            Version::Two => (
                &[("memory.max", None), ("memory.high", None)],
                field(&stat, "inactive_file"),
            ),
        };
        // Version 1 has no keyword for "unlimited": it shows the largest number of whole pages.
        const UNLIMITED: u64 = i64::MAX as u64 & !0xffff;
        limits
            .iter()
            .filter_map(|(file, own_usage)| {
                // `max` is not a number.
                let limit = number(&directory.join(file)).filter(|limit| *limit < UNLIMITED)?;
                let usage = own_usage.map_or(Some(usage), |file| number(&directory.join(file)))?;
                let used = usage.saturating_sub(droppable.unwrap_or(0));
                Some(MemoryLevel {
                    path: directory.to_owned(),
                    limit,
                    free: limit.saturating_sub(used),
                })
            })
            .min_by_key(|level| level.free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Directory with these files, removed at the end.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Tree {
            let root = std::env::temp_dir().join(format!("cgroups-{name}-{}", std::process::id()));
            for (file, text) in files {
                let path = root.join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Tree(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn version_two_on_all_levels() {
        let tree = Tree::new(
            "two",
            &[
                ("fs/a/memory.max", "1000000\n"),
                ("fs/a/memory.high", "max\n"),
                ("fs/a/memory.current", "900000\n"),
                ("fs/a/memory.stat", "anon 5\ninactive_file 50000\n"),
                ("fs/a/b/memory.max", "max\n"),
                ("fs/a/b/memory.high", "500000\n"),
                ("fs/a/b/memory.current", "100000\n"),
                ("fs/a/b/c/memory.max", "max\n"),
                ("fs/a/b/c/memory.high", "max\n"),
                ("fs/a/b/c/memory.current", "1\n"),
                (
                    "fs/a/b/c/memory.events",
                    "low 0\noom 3\noom_kill 2\noom_group_kill 0\n",
                ),
            ],
        );
        let mounts = "36 31 0:33 / /elsewhere rw - tmpfs tmpfs rw\n\
                      41 31 0:38 /x /fs rw,relatime shared:1 - cgroup2 cgroup2 rw\n";
        let found = CgroupMemory::find("0::/x/a/b/c\n", mounts, &tree.0);
        let free: Vec<u64> = found.levels.iter().map(|level| level.free).collect();
        assert_eq!(free, [400_000, 150_000]);
        let tightest = found.tightest().unwrap();
        assert_eq!((tightest.limit, tightest.free), (1_000_000, 150_000));
        assert!(tightest.path.ends_with("fs/a"));
        let text = tightest.to_string();
        assert!(text.starts_with("is left in the memory cgroup /") && text.ends_with("/fs/a"));
        assert_eq!(found.kills(), Some(2));
    }

    #[test]
    fn version_one_with_swap() {
        let tree = Tree::new(
            "one",
            &[
                ("m/memory.limit_in_bytes", "9223372036854771712\n"),
                ("m/memory.usage_in_bytes", "1\n"),
                ("m/g/memory.limit_in_bytes", "25165824\n"),
                ("m/g/memory.usage_in_bytes", "5165824\n"),
                ("m/g/memory.memsw.limit_in_bytes", "25165824\n"),
                ("m/g/memory.memsw.usage_in_bytes", "6165824\n"),
                (
                    "m/g/memory.stat",
                    "inactive_file 7\ntotal_inactive_file 1000000\n",
                ),
                (
                    "m/g/memory.oom_control",
                    "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
                ),
            ],
        );
        let groups = "9:name=systemd:/\n4:cpu,memory:/g\n0::/\n";
        let mounts = "35 31 0:32 / /m rw,relatime - cgroup cgroup rw,memory\n\
                      41 31 0:38 / /unified rw,relatime - cgroup2 cgroup2 rw\n";
        let found = CgroupMemory::find(groups, mounts, &tree.0);
        assert_eq!(found.levels.len(), 1);
        assert_eq!(found.levels[0].free, 20_000_000);
        assert_eq!(found.kills(), Some(1));
    }

    #[test]
    fn a_limit_that_cannot_be_seen_is_none() {
        let mounts = "41 31 0:38 / /fs rw - cgroup2 cgroup2 rw\n";
        for group in ["0::/../../other\n", "0::/gone\n", "garbage", ""] {
            let found = CgroupMemory::find(group, mounts, Path::new("/nowhere"));
            assert_eq!(found, CgroupMemory::default(), "{group}");
        }
        let machine = machine("MemTotal: 100 kB\nMemAvailable:    40 kB\n").unwrap();
        assert_eq!((machine.limit, machine.free), (102_400, 40_960));
        assert_eq!(machine.to_string(), "is available on this machine");
    }
}
