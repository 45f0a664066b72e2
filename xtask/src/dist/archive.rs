//! Files as bytes: tar, gzip, checksums.

use std::collections::BTreeSet;
use std::io::Write;

/// File of the release.
#[derive(Clone)]
pub struct File {
    /// Path relative to the root: `usr/bin/memhook-rs`.
    pub path: String,
    pub mode: u32,
    pub bytes: Vec<u8>,
}

impl File {
    pub fn new(path: impl Into<String>, bytes: impl Into<Vec<u8>>) -> File {
        File {
            path: path.into(),
            mode: 0o644,
            bytes: bytes.into(),
        }
    }
}

/// Returns all directories that contain these files, parents first.
pub fn directories(files: &[File]) -> BTreeSet<&str> {
    let parents = |file: &'_ File| {
        let slashes = file.path.match_indices('/').map(|(at, _)| at);
        slashes.collect::<Vec<_>>()
    };
    files
        .iter()
        .flat_map(|file| parents(file).into_iter().map(|at| &file.path[..at]))
        .collect()
}

/// Returns a tar archive of the files and their directories, all owned by root.
pub fn tar(files: &[File], epoch: u64) -> anyhow::Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    let header = |kind, mode| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_mtime(epoch);
        header.set_uid(0);
        header.set_gid(0);
        header
    };
    for directory in directories(files) {
        let mut header = header(tar::EntryType::Directory, 0o755);
        header.set_size(0);
        // dpkg recognizes paths of its database by this form: deb(5).
        builder.append_data(&mut header, format!("./{directory}/"), std::io::empty())?;
    }
    let mut sorted: Vec<&File> = files.iter().collect();
    sorted.sort_by_key(|file| &file.path);
    for file in sorted {
        let mut header = header(tar::EntryType::Regular, file.mode);
        header.set_size(file.bytes.len() as u64);
        builder.append_data(&mut header, format!("./{}", file.path), &file.bytes[..])?;
    }
    Ok(builder.into_inner()?)
}

/// Compresses data without a file name or a time.
pub fn gzip(bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

/// Returns the checksum in hexadecimal digits, as sha256sum(1) prints it.
pub fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that an archive does not depend on the machine or the time.
    #[test]
    fn the_same_files_give_the_same_bytes() {
        const EPOCH: u64 = 1_700_000_000;
        let files = [File::new("usr/share/b", "b"), File::new("usr/bin/a", "a")];
        let mut turned = files.to_vec();
        turned.reverse();
        let packed = tar(&files, EPOCH).expect("packed");
        assert_eq!(packed, tar(&turned, EPOCH).expect("packed"));
        let mut archive = tar::Archive::new(&packed[..]);
        for entry in archive.entries().expect("an archive") {
            let entry = entry.expect("an entry");
            let header = entry.header();
            assert_eq!(header.mtime().ok(), Some(EPOCH));
            assert_eq!((header.uid().ok(), header.gid().ok()), (Some(0), Some(0)));
        }
        // RFC 1952: no flags, and therefore no name, and no time.
        assert_eq!(gzip(&packed).expect("packed")[3..8], [0; 5]);
    }
}
