//! Thread that compresses and writes, so that the drain never waits for a disk.

use crate::file::checkpoint::Checkpoint;
use crate::file::encode::Frame;
use crate::file::format::Kind;
use crate::file::part::{PartFile, Stop};
use crate::file::records::RecordingEnd;
use crate::{Error, Options};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Number of passes whose events are repeated in a later part, before its first checkpoint.
const LEAD_IN_PASSES: u64 = 4;

/// Work for the thread.
pub(crate) enum Job {
    Frame(Box<Frame>),
    Chunk(ChunkJob),
    /// A chunk that later parts repeat at their beginnings.
    Lasting(ChunkJob),
    Checkpoint(Checkpoint),
    NextPart,
}

pub(crate) struct ChunkJob {
    pub kind: Kind,
    pub span: (u64, u64),
    pub items: usize,
    pub payload: Vec<u8>,
}

impl Job {
    fn bytes(&self) -> usize {
        match self {
            Job::Frame(frame) => frame.len(),
            Job::Chunk(chunk) | Job::Lasting(chunk) => chunk.payload.len(),
            Job::Checkpoint(checkpoint) => {
                size_of_val(&checkpoint.blocks[..]) + size_of_val(&checkpoint.sites[..])
            }
            Job::NextPart => 0,
        }
    }
}

/// State shared by both threads.
#[derive(Default)]
struct Shared {
    queued_bytes: AtomicUsize,
    written_bytes: AtomicU64,
    /// Number of the full part, plus 1.
    full_part: AtomicU32,
    ended: AtomicBool,
    end: Mutex<Option<RecordingEnd>>,
}

impl Shared {
    fn end(&self, end: RecordingEnd) {
        let mut slot = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        slot.get_or_insert(end);
        self.ended.store(true, Relaxed);
    }
}

/// The drain's handle to the thread.
pub(crate) struct Spool {
    shared: Arc<Shared>,
    jobs: Option<Sender<Job>>,
    spare: Receiver<Frame>,
    thread: Option<JoinHandle<()>>,
    max_queued_bytes: usize,
}

impl Spool {
    /// Creates the file and starts the thread.
    pub fn start(path: PathBuf, options: &Options) -> Result<Self, Error> {
        let failed = |path: &PathBuf, action, cause| Error::Io {
            action,
            path: path.clone(),
            cause,
        };
        if options.max_parts > 1
            && !options.overwrite
            && let Some(part) = crate::file::part::first_in_the_way(&path)
        {
            return Err(memhook_foreign::exists_already(&part).into());
        }
        let part = PartFile::create(&path, 0, options)?;
        let shared = Arc::new(Shared::default());
        let (jobs, incoming) = unbounded();
        let (returned, spare) = unbounded();
        let mut worker = Worker {
            part,
            path: path.clone(),
            options: options.clone(),
            shared: shared.clone(),
            returned,
            lasting: Vec::new(),
            lead_in: Vec::new(),
            payload: Vec::new(),
            earlier_bytes: 0,
        };
        let thread = std::thread::Builder::new()
            .name("memhook-record".to_owned())
            .spawn(move || worker.run(&incoming))
            .map_err(|cause| failed(&path, "start a thread for", cause))?;
        Ok(Self {
            shared,
            jobs: Some(jobs),
            spare,
            thread: Some(thread),
            max_queued_bytes: options.max_queued_bytes,
        })
    }

    /// Passes work on. Never waits.
    pub fn send(&self, job: Job) {
        if self.has_ended() {
            return;
        }
        let bytes = job.bytes();
        let queued = self.shared.queued_bytes.fetch_add(bytes, Relaxed);
        // A single large job, such as a checkpoint of a large heap, is always accepted.
        if queued > self.max_queued_bytes {
            self.shared.end(RecordingEnd::TooSlow);
            return;
        }
        if let Some(jobs) = &self.jobs
            && jobs.send(job).is_err()
        {
            self.shared.end(RecordingEnd::Failed(
                "the writing thread is gone".to_owned(),
            ));
        }
    }

    /// Ends the recording here.
    pub fn stop(&self, end: RecordingEnd) {
        self.shared.end(end);
    }

    /// Returns a used frame for reuse, if one is available.
    pub fn spare(&self) -> Frame {
        self.spare.try_recv().unwrap_or_default()
    }

    pub fn has_ended(&self) -> bool {
        self.shared.ended.load(Relaxed)
    }

    pub fn end(&self) -> Option<RecordingEnd> {
        let end = self.shared.end.lock();
        end.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns true if part `number` should be followed by another part.
    pub fn is_full(&self, number: u32) -> bool {
        self.shared.full_part.load(Relaxed) == number + 1
    }

    pub fn written_bytes(&self) -> u64 {
        self.shared.written_bytes.load(Relaxed)
    }

    /// Waits until everything is written.
    pub fn finish(&mut self) -> RecordingEnd {
        self.jobs = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            self.shared
                .end(RecordingEnd::Failed("the writing thread failed".to_owned()));
        }
        self.end().unwrap_or(RecordingEnd::Finished)
    }
}

struct Worker {
    part: PartFile,
    path: PathBuf,
    options: Options,
    shared: Arc<Shared>,
    returned: Sender<Frame>,
    /// Chunks at the start of every part.
    lasting: Vec<ChunkJob>,
    /// Frames of the latest passes, each with its number of passes and a copy of its payload.
    lead_in: Vec<(u64, ChunkJob)>,
    payload: Vec<u8>,
    earlier_bytes: u64,
}

impl Worker {
    fn run(&mut self, jobs: &Receiver<Job>) {
        for job in jobs {
            let bytes = job.bytes();
            if !self.shared.ended.load(Relaxed)
                && let Err(stop) = self.work(job)
            {
                self.shared.end(stop.into_end());
            }
            self.shared.queued_bytes.fetch_sub(bytes, Relaxed);
        }
        let end = self.shared.end.lock();
        let end = end.unwrap_or_else(PoisonError::into_inner).clone();
        if let Err(stop) = self.part.close(&end.unwrap_or(RecordingEnd::Finished)) {
            self.shared.end(stop.into_end());
        }
        self.count_bytes();
        self.shared.end(RecordingEnd::Finished);
    }

    fn count_bytes(&self) {
        let bytes = self.earlier_bytes + self.part.bytes();
        self.shared.written_bytes.store(bytes, Relaxed);
        let limit = self.options.max_file_bytes.unwrap_or(u64::MAX);
        // The rest of the part is reserved for data that arrives before the drain has made a
        // checkpoint.
        if self.part.bytes() > limit / 4 * 3 {
            self.shared.full_part.store(self.part.number() + 1, Relaxed);
        }
    }

    fn work(&mut self, job: Job) -> Result<(), Stop> {
        match job {
            Job::Frame(frame) => self.frame(*frame)?,
            Job::Chunk(chunk) => self.part.append(&chunk)?,
            Job::Lasting(chunk) => {
                self.part.append(&chunk)?;
                if self.options.max_parts > 1 {
                    self.lasting.push(chunk);
                }
            }
            Job::Checkpoint(checkpoint) => self.checkpoint(checkpoint)?,
            Job::NextPart => self.next_part()?,
        }
        self.count_bytes();
        Ok(())
    }

    fn frame(&mut self, frame: Frame) -> Result<(), Stop> {
        self.payload.clear();
        frame.write(&mut self.payload);
        let chunk = ChunkJob {
            kind: Kind::Events,
            span: (frame.from_ns, frame.to_ns),
            items: frame.events,
            payload: std::mem::take(&mut self.payload),
        };
        let passes = frame.passes;
        let _ = self.returned.send(frame);
        let result = self.part.append(&chunk);
        if self.options.max_parts > 1 {
            self.remember(passes, chunk);
        } else {
            self.payload = chunk.payload;
        }
        result
    }

    /// Keeps the frames of the last passes.
    fn remember(&mut self, passes: u64, mut chunk: ChunkJob) {
        chunk.kind = Kind::LeadIn;
        self.lead_in.push((passes, chunk));
        while self.lead_in[1..]
            .iter()
            .map(|(passes, _)| passes)
            .sum::<u64>()
            >= LEAD_IN_PASSES
        {
            self.lead_in.remove(0);
        }
    }

    fn checkpoint(&mut self, mut checkpoint: Checkpoint) -> Result<(), Stop> {
        let time = checkpoint.time_ns;
        let mut result = Ok(());
        let part = &mut self.part;
        checkpoint.write(|payload, items| {
            if result.is_ok() {
                result = part.append(&ChunkJob {
                    kind: Kind::Checkpoint,
                    span: (time, time),
                    items,
                    payload,
                });
            }
        });
        result
    }

    fn next_part(&mut self) -> Result<(), Stop> {
        self.part.close(&RecordingEnd::NextPart)?;
        self.earlier_bytes += self.part.bytes();
        let number = self.part.number() + 1;
        let next = PartFile::create(&self.path, number, &self.options);
        self.part = next.map_err(|error| Stop::Failed(error.to_string()))?;
        if let Some(old) = number.checked_sub(self.options.max_parts) {
            // If the file cannot be removed, someone has moved it away, and nothing needs to be
            // done.
            let _ = std::fs::remove_file(crate::file::part::path_of(&self.path, old));
        }
        for chunk in &self.lasting {
            self.part.append(chunk)?;
        }
        for (_, chunk) in &self.lead_in {
            self.part.append(chunk)?;
        }
        Ok(())
    }
}
