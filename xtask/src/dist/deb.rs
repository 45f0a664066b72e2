//! A Debian package: deb(5).

use super::Release;
use super::archive::{File, gzip, tar};
use super::contents;

/// Description of the package. Continuation lines begin with a space: deb-control(5).
const DESCRIPTION: &str = "\
heap profiler for processes that are already running
 memhook-rs attaches to a C or C++ process without a restart, a preload or a
 rebuild, records every allocation and release, and shows what is live and what
 has leaked by call stack. It also finds unreachable memory and checks programs
 for leaks in CI.";

pub fn package(release: &Release, files: &[File]) -> anyhow::Result<Vec<u8>> {
    // On Debian, site-functions is reserved for the administrator.
    let files: &[File] = &contents::renamed(files, "zsh/site-functions", "zsh/vendor-completions");
    let bytes: usize = files.iter().map(|file| file.bytes.len()).sum();
    let control = format!(
        "Package: memhook-rs\n\
         Version: {}\n\
         Architecture: amd64\n\
         Maintainer: The memhook-rs developers <memhook-rs@localhost>\n\
         Installed-Size: {}\n\
         Section: devel\n\
         Priority: optional\n\
         Description: {DESCRIPTION}\n",
        release.version,
        bytes.div_ceil(1024),
    );
    let control = tar(&[File::new("control", control)], release.epoch)?;
    let members = [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", gzip(&control)?),
        ("data.tar.gz", gzip(&tar(files, release.epoch)?)?),
    ];
    let mut package = b"!<arch>\n".to_vec();
    for (name, bytes) in members {
        let (epoch, size) = (release.epoch, bytes.len());
        // Name, time, owner, group, mode and size, each at a fixed column: ar(5).
        let header = format!(
            "{name:<16}{epoch:<12}{:<6}{:<6}{:<8}{size:<10}`\n",
            0, 0, 100644
        );
        package.extend(header.bytes());
        package.extend(&bytes);
        if size % 2 == 1 {
            package.push(b'\n');
        }
    }
    Ok(package)
}
