//! An open recording.

use crate::file::checkpoint::Checkpoint;
use crate::file::chunk_file::{ChunkFile, ChunkRef};
use crate::file::decode::{Decoder, Visitor};
use crate::file::format::Kind;
use crate::file::gaps::{GAPS_NOTE, gaps_of};
use crate::file::marks::{MARKS_NOTE, marks_of};
use crate::file::meter::Meter;
use crate::file::part::free_bytes;
use crate::file::records::{self, ModuleChange, apply_change};
use crate::file::summary::Interval;
use crate::file::varint::Cursor;
use crate::{ClockPoint, Error, Meta, Module, NamedFrame, RecordingEnd, Stacks, ThreadName};
use memhook_foreign::unnamed_file;
use memhook_stream::{Gap, Losses, NamedMoment};
use rustc_hash::FxHashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// Upper bound on the bytes of all allocations in a recording, so that sums stay far from overflow.
pub(crate) const MAX_TOTAL_BYTES: u64 = 1 << 62;

/// Copies a stream into a file that vanishes when it is closed.
fn copied(stream: impl Read) -> std::io::Result<File> {
    let mut file = unnamed_file()?;
    let most = free_bytes(&file).map_or(u64::MAX, |free| free / 2);
    let copied = std::io::copy(&mut stream.take(most.saturating_add(1)), &mut file)?;
    if copied > most {
        let directory = std::env::temp_dir();
        let why = format!(
            "it would take more than half of the free space in {}: save it as a file, or set TMPDIR",
            directory.display()
        );
        return Err(std::io::Error::other(why));
    }
    Ok(file)
}

/// A recording, open for reading. Opening reads everything except events and checkpoints.
pub struct Recording {
    pub(crate) file: ChunkFile,
    meta: Meta,
    modules: Vec<Module>,
    stacks: Stacks,
    threads: Vec<ThreadName>,
    clock: Vec<ClockPoint>,
    losses: Losses,
    losses_over_time: Vec<(u64, Losses)>,
    gaps: Vec<Gap>,
    marks: Vec<NamedMoment>,
    named_frames: Arc<FxHashMap<u64, NamedFrame>>,
}

impl Recording {
    /// Opens a file, or one part of a recording.
    ///
    /// Fails if the file is not a recording, has another version, ends before its first complete
    /// chunk, or if one of its small records is damaged. A file without an index, because the
    /// recorder died, is read up to its last complete chunk.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Recording::of(ChunkFile::open(path.as_ref())?)
    }

    /// Reads a stream to its end, as [`Recording::open`] reads a file. `name` is the stream's name
    /// in errors.
    ///
    /// Chunks are read in any order, so the stream is copied into an unnamed file in the directory
    /// for temporary files. Fails for a stream that would take more than half of the free space
    /// there.
    pub fn read(name: &str, stream: impl Read) -> Result<Self, Error> {
        let name = Path::new(name);
        let file = copied(stream).map_err(|cause| Error::Io {
            action: "read",
            path: name.to_owned(),
            cause,
        })?;
        Recording::of(ChunkFile::of(file, name)?)
    }

    fn of(file: ChunkFile) -> Result<Self, Error> {
        let mut recording = Self {
            file,
            meta: Meta::default(),
            modules: Vec::new(),
            stacks: Stacks::default(),
            threads: Vec::new(),
            clock: Vec::new(),
            losses: Losses::default(),
            losses_over_time: Vec::new(),
            gaps: Vec::new(),
            marks: Vec::new(),
            named_frames: Arc::default(),
        };
        for chunk in recording.file.chunks.clone() {
            let bulky = [Kind::Events, Kind::LeadIn, Kind::Checkpoint, Kind::Summary];
            if bulky.contains(&chunk.kind) {
                continue;
            }
            let payload = recording.file.payload(&chunk)?;
            recording
                .take_record(&chunk, &payload)
                .map_err(|error| error.in_chunk_at(chunk.offset))?;
        }
        // Reading the events takes most of the time, and starts again at the beginning of the file.
        recording.file.meter.set(0);
        Ok(recording)
    }

    /// Returns the progress meter of the recording.
    pub fn meter(&self) -> Meter {
        self.file.meter.clone()
    }

    fn take_record(&mut self, chunk: &ChunkRef, payload: &[u8]) -> Result<(), Error> {
        let mut cursor = Cursor::new(payload);
        match chunk.kind {
            Kind::Meta => {
                self.meta = Meta::read(&mut cursor)?;
                let notes = &self.meta.notes;
                let note = |name: &str| {
                    let note = notes.iter().find(|(known, _)| known == name);
                    note.map_or("", |(_, value)| value)
                };
                self.gaps = gaps_of(note(GAPS_NOTE))?;
                self.marks = marks_of(note(MARKS_NOTE))?;
            }
            Kind::Modules => apply_change(&mut self.modules, ModuleChange::read(&mut cursor)?),
            Kind::Stacks => self.stacks.read(payload)?,
            Kind::Threads => self.threads.push(ThreadName::read(&mut cursor)?),
            Kind::Names => {
                let named = Arc::make_mut(&mut self.named_frames);
                while !cursor.is_empty() {
                    let frame = NamedFrame::read(&mut cursor)?;
                    named.insert(frame.address, frame);
                }
            }
            Kind::Clock => self.clock.push(ClockPoint::read(&mut cursor)?),
            Kind::Losses => {
                self.losses = records::read_losses(&mut cursor)?;
                self.losses_over_time.push((chunk.to_ns, self.losses));
            }
            Kind::Events | Kind::LeadIn | Kind::Checkpoint | Kind::Summary | Kind::Index => {}
        }
        Ok(())
    }

    /// Returns facts about the run.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Returns every module that was ever loaded, in the order of appearance.
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// Returns the module of an address (avma) at a time (nanoseconds since the attach).
    pub fn module_at(&self, address: u64, time_ns: u64) -> Option<&Module> {
        self.modules.iter().rev().find(|module| {
            (module.start..module.end).contains(&address)
                && module.loaded_ns <= time_ns
                && module.unloaded_ns.is_none_or(|gone| gone > time_ns)
        })
    }

    /// Returns all backtraces.
    pub fn stacks(&self) -> &Stacks {
        &self.stacks
    }

    /// Returns the marks set during the recording, in order.
    pub fn marks(&self) -> &[NamedMoment] {
        &self.marks
    }

    /// Returns names of the frames that are in no module, by their addresses.
    pub fn named_frames(&self) -> &Arc<FxHashMap<u64, NamedFrame>> {
        &self.named_frames
    }

    /// Returns names of threads, in the order in which they were read.
    pub fn threads(&self) -> &[ThreadName] {
        &self.threads
    }

    /// Returns the points of clock calibration.
    pub fn clock(&self) -> &[ClockPoint] {
        &self.clock
    }

    /// Returns the last counts of events that were not recorded.
    pub fn losses(&self) -> &Losses {
        &self.losses
    }

    /// Returns the counts of losses at several times (nanoseconds since the attach).
    pub fn losses_over_time(&self) -> &[(u64, Losses)] {
        &self.losses_over_time
    }

    /// Returns the periods in which the target ran untraced, in order.
    pub fn gaps(&self) -> &[Gap] {
        &self.gaps
    }

    /// Returns why the recording ended; `None` if the recorder died or the end of the file is
    /// missing.
    pub fn end(&self) -> Option<&RecordingEnd> {
        self.file.end.as_ref()
    }

    /// Returns the number of this file among the parts of its recording, from 0.
    pub fn part(&self) -> u32 {
        self.file.part
    }

    /// Returns true if the recording holds sums of intervals instead of events.
    pub fn is_summary(&self) -> bool {
        self.file.chunks.iter().any(|c| c.kind == Kind::Summary)
    }

    /// Returns the number of events.
    pub fn events(&self) -> u64 {
        let frames = self.file.chunks.iter().filter(|c| c.kind == Kind::Events);
        frames.map(|chunk| u64::from(chunk.items)).sum()
    }

    /// Returns the first and last moment recorded, nanoseconds since the attach.
    pub fn span_ns(&self) -> (u64, u64) {
        let timed = || {
            let of_time = [Kind::Events, Kind::Checkpoint, Kind::Summary];
            let chunks = self.file.chunks.iter();
            chunks.filter(move |chunk| of_time.contains(&chunk.kind))
        };
        let from = timed().map(|chunk| chunk.from_ns).min().unwrap_or(0);
        let to = timed().map(|chunk| chunk.to_ns).max().unwrap_or(0);
        // A later part begins with the state of its first checkpoint. Its lead-in does not count as
        // recorded time.
        (from, to)
    }

    /// Returns the times of the checkpoints, in nanoseconds since the attach.
    pub fn checkpoints(&self) -> Vec<u64> {
        let first = self.checkpoint_starts();
        first.map(|at| self.file.chunks[at].from_ns).collect()
    }

    /// Passes on all events of the file, in the order in which they were recorded.
    ///
    /// Fails at the first damaged chunk. The visitor has already received the events before it.
    pub fn visit(&self, visitor: &mut impl Visitor) -> Result<(), Error> {
        let mut decoder = Decoder::new();
        let mut bytes = 0u64;
        for chunk in self.file.chunks.iter().filter(|c| c.kind == Kind::Events) {
            let payload = self.file.payload(chunk)?;
            bytes += decoder
                .frame(&payload, visitor)
                .map_err(|error| error.in_chunk_at(chunk.offset))?;
            if bytes > MAX_TOTAL_BYTES {
                return Err(Error::damaged("more bytes than any run allocates"));
            }
        }
        Ok(())
    }

    /// Returns the intervals of a summary.
    pub fn intervals(&self) -> impl Iterator<Item = Result<Interval, Error>> + '_ {
        let chunks = self.file.chunks.iter();
        chunks.filter(|c| c.kind == Kind::Summary).map(|chunk| {
            let payload = self.file.payload(chunk)?;
            Interval::read(&payload).map_err(|error| error.in_chunk_at(chunk.offset))
        })
    }

    /// Returns the index of the first chunk of each checkpoint.
    pub(crate) fn checkpoint_starts(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        let chunks = &self.file.chunks;
        (0..chunks.len()).filter(move |&at| {
            let is = |at: usize| chunks[at].kind == Kind::Checkpoint;
            // Parts of one checkpoint are adjacent, and there are events between two checkpoints.
            is(at) && !(at > 0 && is(at - 1) && chunks[at - 1].from_ns == chunks[at].from_ns)
        })
    }

    /// Returns the checkpoint that begins with chunk `at`, or `None` if some of its parts are
    /// missing.
    pub(crate) fn read_checkpoint(&self, at: usize) -> Result<Option<Checkpoint>, Error> {
        let mut checkpoint = Checkpoint {
            time_ns: self.file.chunks[at].from_ns,
            ..Checkpoint::default()
        };
        for part in 0.. {
            let chunk = match self.file.chunks.get(at + part) {
                Some(chunk) if chunk.kind == Kind::Checkpoint => chunk,
                _ => return Ok(None),
            };
            let payload = self.file.payload(chunk)?;
            let more = checkpoint
                .read(&payload, part as u64)
                .map_err(|error| error.in_chunk_at(chunk.offset))?;
            if !more {
                break;
            }
        }
        Ok(Some(checkpoint))
    }
}
