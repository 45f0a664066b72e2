//! Paths of files on overlay file systems, as a core dump records them.
//!
//! A mapping on an overlay refers to the file of a layer, and the core dump has the path of that file relative to the
//! layer (`fill_files_note` in fs/binfmt_elf.c). Only /proc/PID/maps has the path in the overlay. The two paths are
//! equal only if the overlay is the root, as in most containers.

use std::path::{Path, PathBuf};

/// Returns the paths of a layer's file in the overlays that are mounted here.
pub(super) fn below_overlays(path: &str) -> Vec<PathBuf> {
    let mounts = crate::proc_text("/proc/self/mountinfo").unwrap_or_default();
    below(path, &mounts)
}

/// Like `below_overlays`; `mounts`: text of /proc/self/mountinfo (proc_pid_mountinfo(5)).
fn below(path: &str, mounts: &str) -> Vec<PathBuf> {
    let below_overlay = |line: &str| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        if !kind.starts_with("overlay ") || point == "/" {
            return None;
        }
        // A bind mount shows one directory of the overlay.
        let rest = Path::new(path).strip_prefix(root).ok()?;
        Some(Path::new(point).join(rest))
    };
    mounts.lines().filter_map(below_overlay).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_in_each_overlay() {
        let mounts = "22 1 0:20 / / rw - overlay overlay rw,lowerdir=/a\n\
                      30 22 0:31 / /srv/tree rw,relatime shared:5 - overlay overlay rw\n\
                      31 22 0:31 /bin /opt/bin rw - overlay overlay rw\n\
                      32 22 8:1 / /data rw - ext4 /dev/vda rw\n\
                      damaged - overlay";
        let found = below("/bin/service", mounts);
        let expected = ["/srv/tree/bin/service", "/opt/bin/service"];
        assert_eq!(found, expected.map(PathBuf::from));
    }
}
