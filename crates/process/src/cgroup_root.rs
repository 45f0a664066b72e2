//! Root of the cgroup hierarchy, for a process that is in a cgroup below the root.

use nix::fcntl::OFlag;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;

/// Mount points of version 2. The second one is used if version 1 is mounted as well.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// Returns the directory of the root, for clone3(2); `None` if this process is already in it, or it cannot be used.
pub fn cgroup_root() -> Option<File> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    // According to cgroups(7), version 2 has hierarchy 0 and no name.
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    if path == "/" {
        return None;
    }
    let is_v2 = |mount: &&&str| std::fs::exists(format!("{mount}/cgroup.procs")).unwrap_or(false);
    File::options()
        .read(true)
        .custom_flags((OFlag::O_PATH | OFlag::O_DIRECTORY).bits())
        .open(MOUNTS.iter().find(is_v2)?)
        .ok()
}
