//! Control group that a user names, and the check whether a process is in it.

use nix::sched::{CloneFlags, setns};

/// A control group of version 1 or 2, including the groups below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlGroup {
    /// Path as in /proc/PID/cgroup (cgroups(7)), without a trailing slash.
    path: String,
    /// Controllers of its hierarchy: empty for version 2, `None` if the name does not show them.
    controllers: Option<Vec<String>>,
}

/// Makes the calling thread, and threads that it starts later, see control groups as process 1 does. Otherwise, in a
/// container that shares the machine's process ids but not its cgroup namespace, the groups of other processes are
/// shown relative to our own, without their common part (cgroup_namespaces(7)). Returns true if anything has changed;
/// without CAP_SYS_ADMIN, nothing changes.
pub fn see_groups_as_init() -> bool {
    let of = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/cgroup")).ok();
    if of("1") == of("thread-self") {
        return false;
    }
    let namespace = std::fs::File::open("/proc/1/ns/cgroup");
    namespace.is_ok_and(|namespace| setns(namespace, CloneFlags::CLONE_NEWCGROUP).is_ok())
}

impl ControlGroup {
    /// Creates a group from a directory where the hierarchy is mounted, from a path as in /proc/PID/cgroup, or from a
    /// whole line of that file.
    pub fn named(text: &str) -> ControlGroup {
        let mounts = crate::proc_text("/proc/self/mountinfo").unwrap_or_default();
        ControlGroup::find(text, &mounts)
    }

    /// Finds the group by means of the text of `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
    fn find(text: &str, mounts: &str) -> ControlGroup {
        let path = text.trim_end_matches('/');
        // The innermost mount point counts.
        let mounted = mounts
            .lines()
            .filter_map(|line| Mount::of(line, path))
            .max_by_key(|mount| mount.point_length);
        if let Some(mount) = mounted {
            return ControlGroup {
                path: mount.path,
                controllers: Some(mount.controllers),
            };
        }
        match line_of(path) {
            Some((controllers, path)) => ControlGroup {
                path: path.to_owned(),
                controllers: Some(controllers),
            },
            None => ControlGroup {
                path: match path {
                    "" => String::new(),
                    path => format!("/{}", path.trim_start_matches('/')),
                },
                controllers: None,
            },
        }
    }

    /// Returns true if a process with this `/proc/PID/cgroup` text is in the group or in one below it.
    pub fn has(&self, groups: &str) -> bool {
        let is_below = |path: &str| {
            let rest = path.strip_prefix(&self.path);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let is_hierarchy = |of_line: &[String]| match &self.controllers {
            None => true,
            // A mount may show several controllers, and its options are not only controllers.
            Some(wanted) => {
                wanted.is_empty() == of_line.is_empty()
                    && of_line.iter().all(|name| wanted.contains(name))
            }
        };
        groups
            .lines()
            .filter_map(line_of)
            .any(|(controllers, path)| is_hierarchy(&controllers) && is_below(path))
    }
}

/// Returns the controllers and the path in a line of /proc/PID/cgroup.
fn line_of(line: &str) -> Option<(Vec<String>, &str)> {
    let mut fields = line.splitn(3, ':');
    let (number, controllers) = (fields.next()?, fields.next()?);
    let path = fields.next()?;
    number.parse::<u32>().ok()?;
    let names = controllers.split(',').filter(|name| !name.is_empty());
    Some((
        names.map(str::to_owned).collect(),
        // The root is the only path that ends with a slash.
        path.trim_end_matches('/'),
    ))
}

/// Mounted hierarchy that contains a directory.
struct Mount {
    point_length: usize,
    /// Path of the directory in the hierarchy.
    path: String,
    controllers: Vec<String>,
}

impl Mount {
    fn of(line: &str, directory: &str) -> Option<Mount> {
        let (mount, kind) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (mount.next()?, mount.next()?);
        let mut kind = kind.split(' ');
        let (file_system, options) = (kind.next()?, kind.nth(1)?);
        let controllers = match file_system {
            "cgroup2" => Vec::new(),
            "cgroup" => options.split(',').map(str::to_owned).collect(),
            _ => return None,
        };
        let below = directory.strip_prefix(point)?;
        if !(below.is_empty() || below.starts_with('/')) {
            return None;
        }
        Some(Mount {
            point_length: point.len(),
            path: format!("{}{below}", root.trim_end_matches('/')),
            controllers,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "30 20 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
        31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
        32 30 0:28 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
        33 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
        34 30 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n";

    fn has(name: &str, groups: &str) -> bool {
        ControlGroup::find(name, MOUNTS).has(groups)
    }

    #[test]
    fn a_path_as_in_proc() {
        for name in ["/a/b", "/a/b/", "a/b", "0::/a/b", "0::/a/b/"] {
            assert!(has(name, "0::/a/b\n"), "{name}");
            assert!(has(name, "0::/a/b/c\n"), "{name}");
            for other in ["0::/a\n", "0::/a/bc\n", "0::/\n", "", "garbage"] {
                assert!(!has(name, other), "{name} {other}");
            }
        }
        assert!(has("/a", "4:memory:/a\n0::/\n"));
        assert!(has("4:memory:/a", "9:cpu:/\n4:memory:/a\n0::/\n"));
        assert!(!has("4:memory:/a", "9:cpu:/a\n4:memory:/\n0::/a\n"));
        assert!(has("/", "0::/\n") && has("/", "0::/a\n"));
        // The group is in another cgroup namespace (cgroup_namespaces(7)).
        assert!(has("/../other", "0::/../other/x\n"));
    }

    #[test]
    fn a_directory_of_a_mounted_hierarchy() {
        assert!(has("/sys/fs/cgroup/unified/a", "4:memory:/b\n0::/a/c\n"));
        assert!(!has("/sys/fs/cgroup/unified/a", "4:memory:/a\n0::/\n"));
        // The mount shows a part of the hierarchy.
        assert!(has("/sys/fs/cgroup/memory/x", "4:memory:/docker/abc/x\n"));
        assert!(has("/sys/fs/cgroup/memory", "4:memory:/docker/abc\n"));
        assert!(!has("/sys/fs/cgroup/memory/x", "4:memory:/x\n"));
        assert!(has("/sys/fs/cgroup/cpu,cpuacct/x", "5:cpu,cpuacct:/x\n"));
        assert!(!has("/sys/fs/cgroup/cpu,cpuacct/x", "6:pids:/x\n0::/x\n"));
        assert!(has("/sys/fs/cgroup/systemd/x", "1:name=systemd:/x\n"));
        let two = "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let group = ControlGroup::find("/sys/fs/cgroup/system.slice/x.service", two);
        assert!(group.has("0::/system.slice/x.service\n"));
    }
}
