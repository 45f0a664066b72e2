//! Records drained events and passes them to the thread that writes the file.

use crate::file::checkpoint::Checkpoint;
use crate::file::columns::FRAME_EVENTS;
use crate::file::encode::{Encoder, Frame};
use crate::file::format::Kind;
use crate::file::records::{self, ModuleChange};
use crate::file::sampled_stacks::SampledStacks;
use crate::file::spool::{ChunkJob, Job, Spool};
use crate::file::stacks::{FULL_BYTES, StackWriter};
use crate::file::summary::Summarizer;
use crate::{ClockPoint, Error, Meta, Mode, Module, NamedFrame, Options, RecordingEnd, ThreadName};
use memhook_abi::{Accesses, Event, Op};
use memhook_ledger::{Ledger, Observer};
use memhook_stream::{Losses, Stack};
use std::path::PathBuf;

/// Minimum number of events between two checkpoints. A reader can replay this many events without a
/// noticeable wait.
const CHECKPOINT_EVENTS: u64 = 1 << 20;
/// Minimum number of events between two checkpoints for each live block. For each block, a
/// checkpoint takes about as many bytes as five to ten events.
const CHECKPOINT_EVENTS_PER_BLOCK: u64 = 4;
/// Number of live blocks whose accesses are written to one frame. With this number, a frame stays
/// far below the maximum size of a chunk.
const LIVE_OF_A_FRAME: usize = 1 << 17;
/// Maximum wait for a frame to fill up.
const MAX_FRAME_NS: u64 = 1_000_000_000;

/// State of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriterState {
    /// The recording takes events.
    Running,
    /// The recording has stopped writing, for this reason. The file stays readable.
    Ended(RecordingEnd),
}

/// Writes a recording. Pass it the drain's output, pass by pass:
/// [`begin_ring`](Writer::begin_ring), [`event`](Writer::event), [`end_pass`](Writer::end_pass).
///
/// Only [`finish`](Writer::finish) waits for the disk, and no method fails. If the disk is full or
/// the size limit is reached, the recording ends, [`state`](Writer::state) returns the reason, and
/// all methods do nothing from then on.
///
/// Dropping a writer finishes the file.
pub struct Writer {
    spool: Spool,
    encoder: Encoder,
    mode: Mode,
    max_parts: u32,
    part: u32,
    /// Stack ids in the file, one bit each.
    known_stacks: Vec<u64>,
    /// Known ids of samples, by their index.
    known_samples: Vec<bool>,
    sampled_stacks: SampledStacks,
    /// True if all allocations are sampled at one distance, which is in [`Meta`].
    all_are_samples: bool,
    /// Stack ids of this pass that the file does not have yet.
    new_stacks: Vec<u32>,
    last_stack: u32,
    stacks: StackWriter,
    /// Frames that wait for their stacks until the end of the pass.
    waiting: Vec<Frame>,
    summarizer: Summarizer,
    events: u64,
    events_at_checkpoint: u64,
    pass_is_empty: bool,
    now_ns: u64,
    last_losses: Option<Losses>,
    active: bool,
}

impl Writer {
    /// Creates the file at `path` and writes the known facts about the run.
    ///
    /// Fails if the file exists (unless [`Options::overwrite`]) or cannot be created, or if the
    /// disk has too little space.
    pub fn create(path: impl Into<PathBuf>, meta: &Meta, options: &Options) -> Result<Self, Error> {
        let writer = Self {
            spool: Spool::start(path.into(), options)?,
            encoder: Encoder::new(),
            mode: options.mode,
            max_parts: options.max_parts,
            part: 0,
            known_stacks: Vec::new(),
            known_samples: Vec::new(),
            sampled_stacks: SampledStacks::default(),
            all_are_samples: meta.sample_bytes > 0,
            new_stacks: Vec::new(),
            last_stack: 0,
            stacks: StackWriter::default(),
            waiting: Vec::new(),
            summarizer: Summarizer::default(),
            events: 0,
            events_at_checkpoint: 0,
            pass_is_empty: true,
            now_ns: 0,
            last_losses: None,
            active: true,
        };
        writer.meta(meta);
        Ok(writer)
    }

    /// Writes the facts about the run that are known by now. Readers use the last version.
    pub fn meta(&self, meta: &Meta) {
        let mut payload = Vec::new();
        meta.write(&mut payload);
        self.lasting(Kind::Meta, self.now_ns, payload);
    }

    fn lasting(&self, kind: Kind, time_ns: u64, payload: Vec<u8>) {
        self.spool.send(Job::Lasting(ChunkJob {
            kind,
            span: (time_ns, time_ns),
            items: 1,
            payload,
        }));
    }

    /// Writes a module that is loaded from `module.loaded_ns` on. Modules loaded before the attach
    /// should be written before the first pass.
    pub fn module_loaded(&mut self, module: &Module) {
        let mut payload = Vec::new();
        ModuleChange::Loaded(module.clone()).write(&mut payload);
        self.lasting(Kind::Modules, module.loaded_ns, payload);
    }

    /// Records that the module with this load bias has been unloaded since `time_ns` (nanoseconds
    /// since the attach).
    pub fn module_unloaded(&mut self, base: u64, time_ns: u64) {
        let mut payload = Vec::new();
        ModuleChange::Unloaded { base, time_ns }.write(&mut payload);
        self.lasting(Kind::Modules, time_ns, payload);
    }

    /// Writes the name that a thread has from now on.
    pub fn thread_name(&mut self, name: &ThreadName) {
        let mut payload = Vec::new();
        name.write(&mut payload);
        self.lasting(Kind::Threads, name.time_ns, payload);
    }

    /// Writes names of backtrace frames that are in no module.
    pub fn named_frames(&mut self, frames: &[NamedFrame]) {
        if frames.is_empty() {
            return;
        }
        let mut payload = Vec::new();
        frames.iter().for_each(|frame| frame.write(&mut payload));
        self.spool.send(Job::Lasting(ChunkJob {
            kind: Kind::Names,
            span: (self.now_ns, self.now_ns),
            items: frames.len(),
            payload,
        }));
    }

    /// Writes a clock reading and the time of day, which were read together. Call this
    /// occasionally.
    pub fn clock(&mut self, point: &ClockPoint) {
        let mut payload = Vec::new();
        point.write(&mut payload);
        self.lasting(Kind::Clock, point.time_ns, payload);
    }

    /// Writes the current counts of losses since the attach, if they have changed.
    pub fn losses(&mut self, losses: &Losses, now_ns: u64) {
        if self.last_losses == Some(*losses) {
            return;
        }
        self.last_losses = Some(*losses);
        let mut payload = Vec::new();
        records::write_losses(losses, &mut payload);
        self.send(Kind::Losses, (now_ns, now_ns), 1, payload);
    }

    /// Begins a series of events that thread `tid` published in ring `ring`.
    pub fn begin_ring(&mut self, ring: usize, tid: u32) {
        self.pass_is_empty = false;
        self.sampled_stacks.set_level(0);
        if self.active && self.mode == Mode::Events {
            self.encoder.begin_ring(ring as u64, tid, self.now_ns);
        }
    }

    /// Sets how the following allocations of this ring are sampled, as a level of
    /// [`SampledAllocations`](memhook_ledger::SampledAllocations). At the beginning of a ring,
    /// allocations are not sampled. The note [`SAMPLES_NOTE`](crate::SAMPLES_NOTE) explains the
    /// levels.
    pub fn set_sampling(&mut self, level: u8) {
        if !self.all_are_samples {
            self.sampled_stacks.set_level(level);
        }
    }

    /// Records the reads and writes of the block that the next release frees.
    pub fn access(&mut self, accesses: &Accesses) {
        if self.active && self.mode == Mode::Events {
            self.encoder.access(accesses);
        }
    }

    /// Records the reads and writes of the blocks that are live at the end. Call this after the
    /// last pass.
    pub fn live_accesses(&mut self, all: &[Accesses]) {
        if !self.active || self.mode != Mode::Events {
            return;
        }
        for some in all.chunks(LIVE_OF_A_FRAME) {
            for accesses in some {
                self.encoder.live_access(accesses, self.now_ns);
            }
            self.cut_frame();
        }
    }

    /// Records one event. `size` is the requested size in bytes, and `time_ns` the time in
    /// nanoseconds since the attach.
    #[inline(always)]
    pub fn event(&mut self, mut event: Event, size: u64, time_ns: u64) {
        if !self.active {
            return;
        }
        if self.sampled_stacks.are_next() && matches!(event.op, Op::Allocation | Op::Pair) {
            event.stack = self.sampled_stacks.id_now(event.stack);
        }
        if event.stack != self.last_stack {
            self.use_stack(event.stack);
        }
        if self.mode != Mode::Events {
            return self.sum_up(event, size);
        }
        self.events += 1;
        self.encoder.event(event, size, time_ns);
        if self.encoder.events() >= FRAME_EVENTS {
            self.end_frame();
        }
    }

    #[inline(never)]
    fn sum_up(&mut self, event: Event, size: u64) {
        let blocks = match event.op {
            Op::Allocation => 1,
            Op::Pair => event.sequence,
            _ => 0,
        };
        for _ in 0..blocks {
            self.summarizer.allocated(event.stack, size);
        }
    }

    #[inline(never)]
    fn end_frame(&mut self) {
        let frame = self.encoder.finish(self.spool.spare());
        self.waiting.push(frame);
    }

    #[inline]
    fn use_stack(&mut self, id: u32) {
        self.last_stack = id;
        match self.sampled_stacks.index_of(id) {
            Some(index) => self.use_samples(id, index),
            None => self.know_stack(id),
        }
    }

    #[inline]
    fn know_stack(&mut self, id: u32) {
        let word = (id / 64) as usize;
        let bit = 1 << (id % 64);
        match self.known_stacks.get_mut(word) {
            Some(known) if *known & bit != 0 => return,
            Some(known) => *known |= bit,
            None => {
                self.known_stacks.resize(word + 1, 0);
                self.known_stacks[word] |= bit;
            }
        }
        if id != 0 {
            self.new_stacks.push(id);
        }
    }

    #[cold]
    fn use_samples(&mut self, id: u32, index: usize) {
        if index >= self.known_samples.len() {
            self.known_samples.resize(index + 1, false);
        }
        if std::mem::replace(&mut self.known_samples[index], true) {
            return;
        }
        if let Some((stack, _)) = self.sampled_stacks.of_id(id) {
            self.know_stack(stack);
        }
        self.new_stacks.push(id);
    }

    /// Ends the pass. `now_ns` is the time in nanoseconds since the attach. `stack` returns the
    /// backtrace with an id, like `Region::stack`.
    pub fn end_pass(&mut self, now_ns: u64, stack: impl FnMut(u32) -> Option<Stack>) {
        self.now_ns = now_ns;
        if !self.active {
            return;
        }
        self.active = !self.spool.has_ended();
        let was_empty = std::mem::replace(&mut self.pass_is_empty, true);
        if self.mode == Mode::Events {
            self.encoder.end_pass(now_ns, was_empty);
        }
        let is_old = self
            .encoder
            .began_ns()
            .is_some_and(|from| now_ns.saturating_sub(from) >= MAX_FRAME_NS);
        self.resolve(stack);
        self.release_frames();
        if is_old {
            self.cut_frame();
        }
    }

    /// Looks up the stacks that were used for the first time.
    fn resolve(&mut self, mut stack: impl FnMut(u32) -> Option<Stack>) {
        let mut ids = std::mem::take(&mut self.new_stacks);
        for id in ids.drain(..) {
            if let Some((stack, level)) = self.sampled_stacks.of_id(id) {
                self.stacks.push_samples(id, stack, level);
            } else if let Some(stack) = stack(id) {
                self.stacks.push(id, &stack);
            }
            if self.stacks.payload.len() >= FULL_BYTES {
                self.send_stacks();
            }
        }
        self.new_stacks = ids;
    }

    fn send_stacks(&mut self) {
        let (payload, count) = self.stacks.take();
        if count > 0 {
            self.send(Kind::Stacks, (self.now_ns, self.now_ns), count, payload);
        }
    }

    fn send(&self, kind: Kind, span: (u64, u64), items: usize, payload: Vec<u8>) {
        self.spool.send(Job::Chunk(ChunkJob {
            kind,
            span,
            items,
            payload,
        }));
    }

    /// Passes on the frames whose stacks are now resolved, after the stacks themselves.
    fn release_frames(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        self.send_stacks();
        for frame in self.waiting.drain(..) {
            self.spool.send(Job::Frame(Box::new(frame)));
        }
    }

    /// Ends the current frame. Called only at the end of a pass, when all stacks are resolved.
    fn cut_frame(&mut self) {
        if !self.encoder.is_empty() {
            self.end_frame();
        }
        self.release_frames();
        self.send_stacks();
    }

    /// Returns true if [`checkpoint`](Writer::checkpoint) should be called now, at the end of a
    /// pass: enough was recorded since the last checkpoint, a file is full, or an interval is over.
    pub fn wants_checkpoint(&self, live_blocks: u64) -> bool {
        if !self.active {
            return false;
        }
        match self.mode {
            Mode::Summary { interval } => {
                let length = self.now_ns.saturating_sub(self.summarizer.began_ns());
                u128::from(length) >= interval.as_nanos()
            }
            Mode::Events => {
                let wait = live_blocks.saturating_mul(CHECKPOINT_EVENTS_PER_BLOCK);
                let due = self.events_at_checkpoint + wait.max(CHECKPOINT_EVENTS);
                self.events >= due || self.wants_next_part()
            }
        }
    }

    fn wants_next_part(&self) -> bool {
        self.max_parts > 1 && self.spool.is_full(self.part)
    }

    /// Writes the state of a ledger that has received exactly these passes, between two passes: the
    /// live heap, or the sums of the interval that ends. `stack` has the same meaning as for
    /// [`end_pass`](Writer::end_pass).
    ///
    /// This method only copies the live blocks. Another thread encodes and writes them.
    pub fn checkpoint(
        &mut self,
        ledger: &Ledger<impl Observer>,
        stack: impl FnMut(u32) -> Option<Stack>,
    ) {
        if !self.active {
            return;
        }
        if let Mode::Summary { .. } = self.mode {
            self.interval(ledger);
            return;
        }
        self.cut_frame();
        let mut checkpoint = Checkpoint::take(ledger, self.now_ns);
        if !self.all_are_samples && ledger.is_sampled() {
            checkpoint.tell_samples(ledger, |stack, level| {
                self.sampled_stacks.id_of(stack, level)
            });
            // The stacks include those whose samples have all been released, because their sums are
            // written too.
            for site in &checkpoint.sites {
                self.use_stack(site.stack);
            }
            self.last_stack = 0;
        }
        if self.wants_next_part() {
            self.part += 1;
            self.spool.send(Job::NextPart);
            // The next part must be readable alone.
            self.known_stacks.clear();
            self.known_samples.clear();
            for site in &checkpoint.sites {
                self.use_stack(site.stack);
            }
            self.last_stack = 0;
            self.resolve(stack);
            self.send_stacks();
            if let Some(losses) = self.last_losses.take() {
                self.losses(&losses, self.now_ns);
            }
        }
        self.spool.send(Job::Checkpoint(checkpoint));
        self.events_at_checkpoint = self.events;
    }

    /// Replaces a checkpoint if the ledger is not exact, because readers would trust its values.
    /// Events continue, and are replayed from the previous checkpoint. A recording of sums ends
    /// here, and so does a recording that has to begin another part.
    pub fn go_on_without_ledger(&mut self) {
        if !self.active {
            return;
        }
        if self.is_summary() || self.wants_next_part() {
            let why =
                "the ledger reached its limit of memory, and this recording needs an exact one";
            self.spool.stop(RecordingEnd::Failed(why.to_owned()));
        }
        self.events_at_checkpoint = self.events;
    }

    fn interval(&mut self, ledger: &Ledger<impl Observer>) {
        self.send_stacks();
        let interval = self.summarizer.interval(ledger, self.now_ns);
        self.send(
            Kind::Summary,
            (interval.from_ns, interval.to_ns),
            interval.sites.len(),
            interval.write(),
        );
    }

    /// Returns `Running` while events are taken, or the reason for the end.
    pub fn state(&self) -> WriterState {
        match self.spool.end() {
            None => WriterState::Running,
            Some(end) => WriterState::Ended(end),
        }
    }

    /// Returns the bytes written so far, to all parts together.
    pub fn written_bytes(&self) -> u64 {
        self.spool.written_bytes()
    }

    /// Returns the number of events recorded so far; 0 if only sums are recorded.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Returns true if sums of intervals are recorded instead of events.
    pub fn is_summary(&self) -> bool {
        self.mode != Mode::Events
    }

    /// Like [`finish`](Writer::finish); also returns the total bytes of all files.
    pub fn finish_counted(mut self) -> (RecordingEnd, u64) {
        let end = self.close();
        (end, self.written_bytes())
    }

    /// Writes the remaining data and the index, and waits for the disk. In summary mode, call
    /// [`checkpoint`](Writer::checkpoint) before this, for the last interval.
    pub fn finish(mut self) -> RecordingEnd {
        self.close()
    }

    fn close(&mut self) -> RecordingEnd {
        if self.active {
            self.cut_frame();
            self.active = false;
        }
        self.spool.finish()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.close();
    }
}
