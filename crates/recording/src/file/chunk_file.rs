//! Finds the chunks of a file.

use crate::Error;
use crate::file::chunk::{ChunkHeader, check_file_header, u64_at, unpack};
use crate::file::format::{
    CHUNK_HEADER_BYTES, END_MAGIC, FILE_HEADER_BYTES, Kind, MAX_CHUNK_BYTES, TRAILER_BYTES,
};
use crate::file::meter::Meter;
use crate::file::records::RecordingEnd;
use crate::file::varint::Cursor;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A chunk in the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkRef {
    pub kind: Kind,
    pub offset: u64,
    pub from_ns: u64,
    pub to_ns: u64,
    pub items: u32,
}

/// An open recording, as chunks.
pub(crate) struct ChunkFile {
    file: File,
    path: PathBuf,
    len: u64,
    pub meter: Meter,
    pub part: u32,
    pub chunks: Vec<ChunkRef>,
    /// End of the recording, from the index; `None` if there is no index, because the recorder
    /// died.
    pub end: Option<RecordingEnd>,
}

impl ChunkFile {
    pub fn open(path: &Path) -> Result<Self, Error> {
        let failed = |action| {
            move |cause| Error::Io {
                action,
                path: path.to_owned(),
                cause,
            }
        };
        // The kind is checked before the file is opened, because opening a pipe would wait for its
        // writer.
        let kind = std::fs::metadata(path).map_err(failed("open"))?.file_type();
        if kind.is_dir() {
            return Err(Error::Directory);
        }
        if !kind.is_file() {
            return Err(Error::Stream);
        }
        ChunkFile::of(File::open(path).map_err(failed("open"))?, path)
    }

    /// Reads an open file. `path` is its name in errors.
    pub fn of(file: File, path: &Path) -> Result<Self, Error> {
        let failed = |action| {
            move |cause| Error::Io {
                action,
                path: path.to_owned(),
                cause,
            }
        };
        let metadata = file.metadata().map_err(failed("read"))?;
        let len = metadata.len();
        if !metadata.is_file() {
            return Err(Error::Stream);
        }
        if len == 0 {
            return Err(Error::NoBytes);
        }
        let mut header = [0; FILE_HEADER_BYTES];
        let there = len.min(FILE_HEADER_BYTES as u64) as usize;
        file.read_exact_at(&mut header[..there], 0)
            .map_err(failed("read"))?;
        let mut chunks = Self {
            part: check_file_header(&header[..there])?,
            file,
            path: path.to_owned(),
            len,
            meter: Meter::of(len),
            chunks: Vec::new(),
            end: None,
        };
        if chunks.read_index().is_none() {
            chunks.chunks.clear();
            chunks.end = None;
            chunks.walk();
        }
        if chunks.chunks.is_empty() {
            return Err(Error::Empty);
        }
        Ok(chunks)
    }

    fn read_at(&self, offset: u64, bytes: usize) -> Result<Vec<u8>, Error> {
        // This check precedes any allocation, because a forged length must not cost memory.
        if offset
            .checked_add(bytes as u64)
            .is_none_or(|end| end > self.len)
        {
            return Err(Error::damaged("a chunk runs past the end of the file"));
        }
        let mut out = vec![0; bytes];
        let read = self.file.read_exact_at(&mut out, offset);
        read.map_err(|cause| Error::Io {
            action: "read",
            path: self.path.clone(),
            cause,
        })?;
        Ok(out)
    }

    fn header_at(&self, offset: u64) -> Option<ChunkHeader> {
        let bytes = self.read_at(offset, CHUNK_HEADER_BYTES).ok()?;
        let header = ChunkHeader::parse(bytes.as_slice().try_into().ok()?)?;
        let end = offset.checked_add(header.file_bytes())?;
        (end <= self.len).then_some(header)
    }

    fn payload_at(&self, offset: u64, header: &ChunkHeader) -> Result<Vec<u8>, Error> {
        let start = offset + CHUNK_HEADER_BYTES as u64;
        let stored = self.read_at(start, header.stored_bytes as usize)?;
        let mut decompressor = zstd::bulk::Decompressor::new()
            .map_err(|_| Error::damaged("the decompressor cannot be set up"))?;
        unpack(header, &stored, &mut decompressor)
    }

    /// Returns the checked payload of a chunk.
    pub fn payload(&self, chunk: &ChunkRef) -> Result<Vec<u8>, Error> {
        self.meter.set(chunk.offset);
        let damaged = || Error::damaged("the header of a chunk").in_chunk_at(chunk.offset);
        let header = self.header_at(chunk.offset).ok_or_else(damaged)?;
        if header.kind != chunk.kind {
            return Err(damaged());
        }
        self.payload_at(chunk.offset, &header)
            .map_err(|error| error.in_chunk_at(chunk.offset))
    }

    /// Reads the list of chunks from the index at the end of the file.
    fn read_index(&mut self) -> Option<()> {
        let trailer = self.len.checked_sub(TRAILER_BYTES as u64)?;
        let bytes = self.read_at(trailer, TRAILER_BYTES).ok()?;
        if bytes[8..] != END_MAGIC {
            return None;
        }
        let at = u64_at(&bytes, 0);
        let header = self.header_at(at)?;
        if header.kind != Kind::Index || at.checked_add(header.file_bytes())? != trailer {
            return None;
        }
        let payload = self.payload_at(at, &header).ok()?;
        let mut cursor = Cursor::new(&payload);
        self.end = Some(RecordingEnd::read(&mut cursor).ok()?);
        let mut offset = 0u64;
        for _ in 0..cursor.count(6).ok()? {
            let kind = Kind::from_code(u8::try_from(cursor.varint().ok()?).ok()?)?;
            offset = offset.checked_add(cursor.varint().ok()?)?;
            let bytes = cursor.varint().ok()?;
            let from_ns = cursor.varint().ok()?;
            let to_ns = from_ns.checked_add(cursor.varint().ok()?)?;
            let items = cursor.u32().ok()?;
            if offset.checked_add(bytes)? > at || bytes > (MAX_CHUNK_BYTES as u64) * 2 {
                return None;
            }
            self.chunks.push(ChunkRef {
                kind,
                offset,
                from_ns,
                to_ns,
                items,
            });
        }
        Some(())
    }

    /// Finds the chunks in sequence, up to the last complete one.
    fn walk(&mut self) {
        let mut offset = FILE_HEADER_BYTES as u64;
        while let Some(header) = self.header_at(offset) {
            if header.kind != Kind::Index {
                self.chunks.push(ChunkRef {
                    kind: header.kind,
                    offset,
                    from_ns: header.from_ns,
                    to_ns: header.to_ns,
                    items: header.items,
                });
            }
            offset += header.file_bytes();
        }
    }
}
