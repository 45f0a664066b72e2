//! One file being written: chunks, index, limits of size and disk.

use crate::file::chunk::{Packer, file_header};
use crate::file::format::{CHUNK_HEADER_BYTES, END_MAGIC, Kind, TRAILER_BYTES};
use crate::file::records::RecordingEnd;
use crate::file::spool::ChunkJob;
use crate::file::varint::put;
use crate::{Error, Options};
use memhook_foreign::OutputFile;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// Bytes written between two checks of the disk's free space.
const LOOK_BYTES: u64 = 4 << 20;
/// Space reserved for each chunk's entry in the index, and once for the rest of the index.
const INDEX_ENTRY_BYTES: u64 = 40;

/// Path that represents standard output, which is a pipe or a socket.
pub const STREAM: &str = "-";

/// Reason to stop writing.
pub(crate) enum Stop {
    SizeLimit,
    LowDisk(u64),
    Failed(String),
}

impl Stop {
    pub fn into_end(self) -> RecordingEnd {
        match self {
            Stop::SizeLimit => RecordingEnd::SizeLimit,
            Stop::LowDisk(free_bytes) => RecordingEnd::LowDisk { free_bytes },
            Stop::Failed(why) => RecordingEnd::Failed(why),
        }
    }
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        Stop::Failed(error.to_string())
    }
}

/// Returns the file of a part: first the path itself, then with the number before the extension
/// (`run.mhk`, `run.1.mhk`, `run.2.mhk`).
pub(crate) fn path_of(path: &Path, part: u32) -> PathBuf {
    if part == 0 {
        return path.to_owned();
    }
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".{part}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// Finds an existing later part of an earlier recording, which this recording would otherwise
/// overwrite.
pub(crate) fn first_in_the_way(path: &Path) -> Option<PathBuf> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let entries = std::fs::read_dir(folder.unwrap_or(Path::new("."))).ok()?;
    let numbers = entries.flatten().filter_map(|entry| {
        let name = PathBuf::from(entry.file_name());
        let number = Path::new(name.file_stem()?)
            .extension()?
            .to_str()?
            .parse()
            .ok()?;
        let its_name = path_of(path, number);
        (number > 0 && its_name.file_name() == Some(name.as_os_str())).then_some(number)
    });
    numbers.min().map(|number| path_of(path, number))
}

pub(crate) struct PartFile {
    file: File,
    number: u32,
    packer: Packer,
    /// Bytes of complete chunks.
    bytes: u64,
    /// Payload of the index: kind, offset and times of each chunk.
    index: Vec<u8>,
    chunks: u64,
    last: (u64, u64),
    max_bytes: u64,
    min_free_bytes: u64,
    looked_at: u64,
}

impl PartFile {
    pub fn create(path: &Path, number: u32, options: &Options) -> Result<Self, Error> {
        let path = path_of(path, number);
        let failed = |action| {
            let path = path.clone();
            move |cause| Error::Io {
                action,
                path,
                cause,
            }
        };
        let output = if path == Path::new(STREAM) {
            None
        } else {
            Some(OutputFile::create(&path, options.overwrite)?)
        };
        if let Some(output) = &output
            && let Some(free_bytes) = free_bytes(output.file())
            && free_bytes < options.min_free_bytes
        {
            // Nothing was recorded, so the file is removed.
            return Err(Error::NoSpace {
                path,
                free_bytes,
                needed_bytes: options.min_free_bytes,
            });
        }
        let mut file = match output {
            Some(output) => output.keep().map_err(failed("create"))?,
            // The descriptor is duplicated, because a socket, which a shell on another machine may
            // give us, cannot be opened by name.
            None => std::io::stdout()
                .as_fd()
                .try_clone_to_owned()
                .map_err(failed("write"))?
                .into(),
        };
        let header = file_header(number);
        file.write_all(&header).map_err(failed("write"))?;
        Ok(Self {
            file,
            packer: Packer::new().map_err(failed("compress for"))?,
            number,
            bytes: header.len() as u64,
            index: Vec::new(),
            chunks: 0,
            last: (0, 0),
            max_bytes: match options.max_parts {
                0 | 1 => options.max_file_bytes.unwrap_or(u64::MAX),
                // The next part is requested early enough that the events queued until then still
                // fit.
                _ => options.max_file_bytes.unwrap_or(u64::MAX).saturating_mul(2),
            },
            min_free_bytes: options.min_free_bytes,
            looked_at: 0,
        })
    }

    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the bytes written, in complete chunks only.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn append(&mut self, chunk: &ChunkJob) -> Result<(), Stop> {
        let packed = self
            .packer
            .pack(chunk.kind, chunk.span, chunk.items, &chunk.payload)?;
        let after = self.bytes + packed.len() as u64;
        let index = (self.chunks + 2) * INDEX_ENTRY_BYTES + TRAILER_BYTES as u64;
        if after.saturating_add(index) > self.max_bytes {
            return Err(Stop::SizeLimit);
        }
        if after - self.looked_at >= LOOK_BYTES {
            self.looked_at = after;
            match free_bytes(&self.file) {
                Some(free) if free < self.min_free_bytes => return Err(Stop::LowDisk(free)),
                _ => {}
            }
        }
        if let Err(error) = self.file.write_all(&packed) {
            // Readers stop before an incomplete chunk anyway. This only frees the space.
            let _ = self.file.set_len(self.bytes);
            return Err(error.into());
        }
        put(&mut self.index, chunk.kind as u64);
        put(&mut self.index, self.bytes - self.last.0);
        put(&mut self.index, packed.len() as u64);
        put(&mut self.index, chunk.span.0);
        put(&mut self.index, chunk.span.1.saturating_sub(chunk.span.0));
        put(&mut self.index, chunk.items as u64);
        self.last = (self.bytes, chunk.span.1.max(self.last.1));
        self.chunks += 1;
        self.bytes = after;
        Ok(())
    }

    /// Writes the index. A file without an index can be read too, by walking over its chunks.
    pub fn close(&mut self, end: &RecordingEnd) -> Result<(), Stop> {
        let mut payload = Vec::new();
        end.write(&mut payload);
        put(&mut payload, self.chunks);
        payload.extend_from_slice(&self.index);
        let span = (self.last.1, self.last.1);
        let mut packed = self
            .packer
            .pack(Kind::Index, span, self.chunks as usize, &payload)?;
        debug_assert!(packed.len() > CHUNK_HEADER_BYTES);
        packed.extend_from_slice(&self.bytes.to_le_bytes());
        packed.extend_from_slice(&END_MAGIC);
        use std::os::unix::fs::FileExt;
        // The file position is not used, because a failed write may have moved it. For a pipe,
        // pwrite(2) fails and write(2) is used.
        let written = match self.file.write_all_at(&packed, self.bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::NotSeekable => {
                self.file.write_all(&packed)
            }
            written => written,
        };
        if let Err(error) = written {
            let _ = self.file.set_len(self.bytes);
            return Err(error.into());
        }
        self.bytes += packed.len() as u64;
        match self.file.set_len(self.bytes) {
            // Devices and pipes have no length (ftruncate(2)).
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => Ok(()),
            cut => Ok(cut?),
        }
    }
}

/// Returns the bytes that an ordinary user can still write; `None` if the file system does not report them.
pub(crate) fn free_bytes(file: &File) -> Option<u64> {
    let stat = nix::sys::statvfs::fstatvfs(file).ok()?;
    if stat.blocks() == 0 {
        // A pipe is on no disk.
        return None;
    }
    stat.blocks_available().checked_mul(stat.fragment_size())
}
