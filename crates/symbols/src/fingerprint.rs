//! Fingerprint that distinguishes files with equal build-ids.

use crate::file::Image;
use ring::digest::{Context, SHA256};
use std::os::unix::fs::{FileExt, MetadataExt};

/// Size up to which a file is read completely for the fingerprint. Reading the debug information of
/// such a file takes longer anyway.
const MOST_BYTES: u64 = 64 << 20;
const PIECE_BYTES: usize = 256 << 10;

/// Fingerprint of all files with the names of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint([u8; 16]);

impl Fingerprint {
    /// Computes the fingerprint of these files in this order; `None` if one cannot be read.
    pub fn of<'a>(files: impl IntoIterator<Item = &'a Image>) -> Option<Fingerprint> {
        let mut all = Context::new(&SHA256);
        for file in files {
            all.update(&one(file)?);
        }
        let digest = all.finish();
        digest.as_ref().first_chunk().copied().map(Fingerprint)
    }

    pub fn hex(&self) -> String {
        crate::file::hex(&self.0)
    }
}

/// Returns a digest of the contents. For a large file, returns a digest of the file's identity and
/// its change time instead. A writer cannot set the change time (inode(7), `st_ctime`).
fn one(image: &Image) -> Option<[u8; 32]> {
    let mut digest = Context::new(&SHA256);
    match image {
        Image::Bytes(bytes) => digest.update(bytes),
        Image::Parts { file, extent, .. } if extent.bytes <= MOST_BYTES => {
            let mut piece = vec![0; PIECE_BYTES];
            let mut at = 0;
            while at < extent.bytes {
                let wanted = (extent.bytes - at).min(PIECE_BYTES as u64) as usize;
                file.read_exact_at(&mut piece[..wanted], at).ok()?;
                digest.update(&piece[..wanted]);
                at += wanted as u64;
            }
        }
        Image::Parts { file, .. } => {
            let found = file.metadata().ok()?;
            digest.update(b"which file");
            for number in [found.dev(), found.ino(), found.len()] {
                digest.update(&number.to_le_bytes());
            }
            for time in [
                found.mtime(),
                found.mtime_nsec(),
                found.ctime(),
                found.ctime_nsec(),
            ] {
                digest.update(&time.to_le_bytes());
            }
        }
    }
    digest.finish().as_ref().first_chunk().copied()
}
