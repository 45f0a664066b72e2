//! The root of the cgroup hierarchy, if this process is further down in it.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;

/// Where version 2 is mounted; the second one beside version 1.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// The folder of the root, to be given to clone3(2); `None` where nothing is gained by it.
pub(super) fn root() -> Option<File> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    // cgroups(7): version 2 has the hierarchy 0 and no name.
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    if path == "/" {
        return None;
    }
    let is_v2 = |mount: &&&str| std::fs::exists(format!("{mount}/cgroup.procs")).unwrap_or(false);
    let mount = MOUNTS.iter().find(is_v2)?;
    let flags = libc::O_PATH | libc::O_DIRECTORY;
    File::options()
        .read(true)
        .custom_flags(flags)
        .open(mount)
        .ok()
}
