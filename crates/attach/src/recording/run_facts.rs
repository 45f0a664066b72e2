//! Facts that a recording contains in addition to events: modules, thread names, losses, clocks.

use crate::config::TraceConfig;
use crate::drain::consumer::Consumer;
use crate::drain::recorder::Recorder;
use crate::drain::state::{Memory, State};
use crate::session::Session;
use memhook_abi::{ACCESS_LISTENER, function_by_name};
use memhook_ledger::Observer;
use memhook_process::{ModuleImage, resident_counters};
use memhook_process::{command_line, process_name};
use memhook_recording::{
    ACCESS_NOTE, ClockPoint, FUNCTIONS_NOTE, GAPS_NOTE, MARKS_NOTE, Meta, Module, NamedFrame,
    RESIDENT_NOTE, RecordingEnd, ResidentSample, SAMPLES_NOTE, ThreadName, WriterState, gaps_text,
    marks_text, resident_text, samples_text,
};
use memhook_stream::{Region, time_stamp_counter};
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Time between two collections of facts. They are repeated because a thread may get its name after its first
/// allocation, and because losses may grow.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of samples of resident memory. When it is reached, every second sample is dropped, and the interval
/// is doubled.
const MOST_SAMPLES: usize = 600;
/// Initial interval of these samples, short enough that a run of one second has enough samples.
const FIRST_SAMPLE_PAUSE: Duration = Duration::from_millis(50);
/// Time between two clock readings.
const CLOCK_PAUSE: Duration = Duration::from_secs(10);

/// Returns the facts of the run that are known before the attach.
pub fn meta(pid: i32, config: &TraceConfig) -> Meta {
    let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let command = command_line(pid);
    let note = |name: &str, value: String| (name.to_owned(), value);
    Meta {
        pid: pid as u32,
        started_unix_ns: unix_ns(),
        command: command.trim_end().to_owned(),
        host: file("/proc/sys/kernel/hostname").trim_end().to_owned(),
        recorder: concat!("memhook-rs ", env!("CARGO_PKG_VERSION")).to_owned(),
        clock_mode: config.clock_mode(),
        flags: config.flags(),
        sample_bytes: config.sample_bytes.unwrap_or(0),
        notes: vec![
            note("name", process_name(pid)),
            note("depth", config.depth.to_string()),
        ],
    }
}

fn unix_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |time| time.as_nanos() as u64)
}

/// Collects the facts for the recorder, on the thread that follows the modules.
pub struct Facts {
    path: PathBuf,
    memory: Memory,
    meta: Meta,
    /// Recorded modules, by load bias and path.
    modules: HashMap<(u64, String), ()>,
    threads: HashMap<u32, String>,
    next_look: Duration,
    next_clock: Duration,
    /// First reading of time stamp counter and time.
    first_clock: Option<(u64, Duration)>,
    /// Number of recorded gaps.
    gaps: usize,
    is_gap_open: bool,
    resident: ResidentSeries,
    /// Number of recorded marks.
    marks: usize,
    /// True if the user has been told that the recording ended early.
    has_ended: bool,
}

impl Facts {
    /// Collects facts for the recording at `path`, which begins with `meta`.
    pub(crate) fn new(path: &Path, meta: Meta, memory: Memory) -> Facts {
        Facts {
            path: path.to_owned(),
            memory,
            meta,
            modules: HashMap::new(),
            threads: HashMap::new(),
            next_look: Duration::ZERO,
            next_clock: Duration::ZERO,
            first_clock: None,
            gaps: 0,
            is_gap_open: false,
            resident: ResidentSeries::default(),
            marks: 0,
            has_ended: false,
        }
    }

    /// Returns the kind of memory in the recording.
    pub(crate) fn memory(&self) -> Memory {
        self.memory
    }

    /// Records the sampling distances so far.
    fn note_samples<O: Observer>(&mut self, state: &State<O>) {
        let counts = match self.memory {
            Memory::Heap => &state.counts,
            Memory::Described(heap) => &state.heaps[heap].counts,
            Memory::Mappings => return,
        };
        if !counts.always && counts.estimator.sample_bytes.is_some() {
            self.note(SAMPLES_NOTE, samples_text(counts));
        }
    }

    /// Records the facts of the attach. This happens before the first pass, so that every recording contains them.
    pub fn begin<O: Observer + Send>(&mut self, session: &Session, consumer: &Consumer<O>) {
        let elapsed = consumer.elapsed().as_nanos() as u64;
        self.meta.started_unix_ns = unix_ns().saturating_sub(elapsed);
        let exe = session.modules().first().map(|module| module.path.clone());
        self.note("exe", exe.unwrap_or_default());
        let ms = |time: Duration| format!("{:.3}", time.as_secs_f64() * 1e3);
        self.note("attach_ms", ms(session.attach_time()));
        if session.is_from_start() {
            self.note("from_start", "1".to_owned());
        }
        self.note("held_ms", ms(session.held_time()));
        self.note("idle_held_ms", ms(session.idle_held_time()));
        self.note_slots(session);
        self.note_accesses(session);
        if let Memory::Described(heap) = self.memory
            && let Some(heap) = session.heaps().get(heap)
        {
            let lines = heap.functions.iter();
            let lines = lines.map(|(id, name)| format!("{id} {name}\n"));
            self.note(FUNCTIONS_NOTE, lines.collect());
        }
        let mut state = consumer.lock();
        self.note_samples(&state);
        if let Some(recorder) = state.recorder_of(self.memory) {
            recorder.writer.meta(&self.meta);
        }
        drop(state);
        self.follow(session, consumer, true);
    }

    fn note(&mut self, name: &str, value: String) {
        self.meta.notes.retain(|(known, _)| known != name);
        self.meta.notes.push((name.to_owned(), value));
    }

    /// Records the gaps and returns true if they have changed. An open gap is recorded immediately, so that the
    /// recording contains it even if the recorder dies during the gap.
    fn note_gaps<O: Observer + Send>(&mut self, consumer: &Consumer<O>, now: Duration) -> bool {
        let log = consumer.gap_log();
        let (count, is_open) = (log.len(), log.is_open());
        let gaps = log.until(now.as_nanos() as u64);
        drop(log);
        if gaps.is_empty() || (count, is_open) == (self.gaps, self.is_gap_open) {
            return false;
        }
        (self.gaps, self.is_gap_open) = (count, is_open);
        self.note(GAPS_NOTE, gaps_text(&gaps));
        true
    }

    /// Records new marks, and returns true if there are any.
    fn note_marks(&mut self, session: &Session) -> bool {
        let marks = session.marks();
        if marks.len() == self.marks {
            return false;
        }
        self.marks = marks.len();
        self.note(MARKS_NOTE, marks_text(marks));
        true
    }

    /// Records the names of run-time code in backtraces, as far as the process has published them.
    fn name_made_code(session: &Session, recorder: &mut Recorder) {
        if recorder.made_frames.is_empty() {
            return;
        }
        let Some(names) = session.made_names() else {
            return;
        };
        let mut named = Vec::new();
        recorder.made_frames.retain(|&address| {
            let name = names.name(address);
            named.extend(name.map(|name| NamedFrame {
                address,
                function: name.to_owned(),
                ..NamedFrame::default()
            }));
            name.is_none()
        });
        recorder.writer.named_frames(&named);
    }

    /// Records the clock that the session uses, and the modules that report reads and writes.
    fn note_accesses(&mut self, session: &Session) {
        let region = session.region();
        self.meta.clock_mode = region.clock_mode();
        self.meta.flags = region.flags();
        if !region.counts_accesses() {
            return;
        }
        let slots = region.slots().into_iter();
        let listener = function_by_name(ACCESS_LISTENER);
        let listeners = slots.filter(|slot| Some(slot.function as usize) == listener);
        let bases = listeners.map(|slot| format!("{:x}", slot.module_base));
        self.note(ACCESS_NOTE, bases.collect::<Vec<_>>().join(" "));
    }

    fn note_missed(&mut self, region: &Region) {
        if region.access_missed() > 0 {
            self.note("access_missed", region.access_missed().to_string());
        }
    }

    fn note_slots(&mut self, session: &Session) {
        let (slots, modules) = session.patched();
        self.note("slots", slots.to_string());
        self.note("modules", modules.to_string());
    }

    /// Collects facts; called on every turn. `modules_changed` is true if the modules differ from those of the previous
    /// call. If the recording has ended while the trace continues, returns a message for the user, once.
    pub fn follow<O: Observer + Send>(
        &mut self,
        session: &Session,
        consumer: &Consumer<O>,
        modules_changed: bool,
    ) -> Option<String> {
        let now = consumer.elapsed();
        self.resident.look(session.pid(), now);
        let look = now >= self.next_look;
        let mut state = consumer.lock();
        let recorder = state.recorder_of(self.memory).as_mut()?;
        if modules_changed {
            self.modules(session, recorder, now);
        }
        // Both calls must run, even if the first returns true.
        let has_news = [self.note_gaps(consumer, now), self.note_marks(session)];
        if has_news.contains(&true) {
            recorder.writer.meta(&self.meta);
        }
        let asked: Vec<u32> = if look {
            recorder.threads().collect()
        } else {
            Vec::new()
        };
        let new = std::mem::take(&mut recorder.new_threads);
        if !look && new.is_empty() {
            return None;
        }
        drop(state);
        // /proc is read without the lock, so that the rings do not have to wait for the read.
        let names: Vec<(u32, String)> = new
            .into_iter()
            .chain(asked)
            .map(|tid| (tid, session.thread_name(tid)))
            .filter(|(tid, name)| !name.is_empty() && self.threads.get(tid) != Some(name))
            .collect();
        let mut state = consumer.lock();
        let recorder = state.recorder_of(self.memory).as_mut()?;
        let time_ns = now.as_nanos() as u64;
        for (tid, name) in names {
            if self.threads.get(&tid) == Some(&name) {
                continue;
            }
            self.threads.insert(tid, name.clone());
            recorder
                .writer
                .thread_name(&ThreadName { tid, name, time_ns });
        }
        if look {
            self.next_look = now + LOOK_PAUSE;
            recorder.writer.losses(&session.region().losses(), time_ns);
            if now >= self.next_clock {
                self.next_clock = now + CLOCK_PAUSE;
                let point = self.clock(now);
                recorder.writer.clock(&point);
            }
            recorder.made_areas = session.made_areas().to_vec();
            Facts::name_made_code(session, recorder);
            return self.early_end(recorder);
        }
        None
    }

    fn clock(&mut self, now: Duration) -> ClockPoint {
        let tsc = time_stamp_counter();
        let (first_tsc, first) = *self.first_clock.get_or_insert((tsc, now));
        let counts = tsc.saturating_sub(first_tsc);
        ClockPoint {
            time_ns: now.as_nanos() as u64,
            unix_ns: unix_ns(),
            tsc,
            tsc_scale: match counts {
                0 => 0.0,
                _ => now.saturating_sub(first).as_nanos() as f64 / counts as f64,
            },
        }
    }

    fn modules(&mut self, session: &Session, recorder: &mut Recorder, now: Duration) {
        recorder.own_code = session.own_code();
        let key = |module: &ModuleImage| (module.base, module.path.clone());
        let there: HashMap<(u64, String), ()> =
            session.modules().iter().map(|m| (key(m), ())).collect();
        // Modules of the attach existed before the first event.
        let time_ns = if self.modules.is_empty() {
            0
        } else {
            now.as_nanos() as u64
        };
        for (base, _) in self.modules.keys().filter(|key| !there.contains_key(*key)) {
            recorder.writer.module_unloaded(*base, time_ns);
        }
        for module in session.modules() {
            if !self.modules.contains_key(&key(module)) {
                recorder.writer.module_loaded(&Module {
                    path: module.path.clone(),
                    build_id: module.build_id.clone().unwrap_or_default(),
                    base: module.base,
                    start: module.start,
                    end: module.end,
                    loaded_ns: time_ns,
                    unloaded_ns: None,
                });
            }
        }
        self.modules = there;
    }

    /// Returns the reason why the recording has ended early, unless it was reported before.
    fn early_end(&mut self, recorder: &Recorder) -> Option<String> {
        let WriterState::Ended(end) = recorder.writer.state() else {
            return None;
        };
        if std::mem::replace(&mut self.has_ended, true) {
            return None;
        }
        Some(format!(
            "{} ends here: {end}; the part so far is readable, and tracing continues",
            self.path.display()
        ))
    }

    /// Ends the recording after the drain thread has ended. `notes` contains facts of the last report, by name. Returns
    /// `None` if there was no recording.
    pub fn finish<O: Observer + Send>(
        &mut self,
        session: &Session,
        consumer: &Consumer<O>,
        notes: &[(&str, String)],
    ) -> Option<Recorded> {
        self.note_slots(session);
        for (name, text) in notes {
            self.note(name, text.clone());
        }
        let mut state = consumer.lock();
        self.note_samples(&state);
        let mut recorder = state.recorder_of(self.memory).take()?;
        let now = consumer.elapsed();
        let time_ns = now.as_nanos() as u64;
        for tid in std::mem::take(&mut recorder.new_threads) {
            let name = session.thread_name(tid);
            if !name.is_empty() {
                recorder
                    .writer
                    .thread_name(&ThreadName { tid, name, time_ns });
            }
        }
        recorder.writer.losses(&session.region().losses(), time_ns);
        recorder.writer.clock(&self.clock(now));
        // An open gap ends now.
        self.is_gap_open = false;
        self.note_gaps(consumer, now);
        self.note_marks(session);
        Facts::name_made_code(session, &mut recorder);
        self.note_missed(session.region());
        if self.memory == Memory::Heap {
            let live = session.region().live_accesses(consumer.tick_time());
            recorder.writer.live_accesses(&live);
        }
        self.resident.end(session.pid(), now);
        self.note(RESIDENT_NOTE, resident_text(&self.resident.samples));
        recorder.writer.meta(&self.meta);
        match (self.memory, &state.mappings) {
            (Memory::Mappings, Some(mappings)) => {
                recorder.last_interval(mappings.ledger(), session.region());
            }
            (Memory::Described(heap), _) => {
                recorder.last_interval(&state.heaps[heap].ledger, session.region());
            }
            _ => recorder.last_interval(&state.ledger, session.region()),
        }
        drop(state);
        let early_end = self.early_end(&recorder);
        let events = recorder.writer.events();
        let (end, bytes) = recorder.writer.finish_counted();
        let is_complete = matches!(end, RecordingEnd::Finished | RecordingEnd::SizeLimit);
        let incomplete = (!is_complete && !self.has_ended).then(|| {
            format!(
                "{} is not complete: {end}; the part so far is readable",
                self.path.display()
            )
        });
        Some(Recorded {
            path: self.path.clone(),
            events,
            bytes,
            end,
            notice: early_end.or(incomplete),
        })
    }
}

/// Resident memory over time.
struct ResidentSeries {
    samples: Vec<ResidentSample>,
    pause: Duration,
    next: Duration,
}

impl Default for ResidentSeries {
    fn default() -> Self {
        ResidentSeries {
            samples: Vec::new(),
            pause: FIRST_SAMPLE_PAUSE,
            next: Duration::ZERO,
        }
    }
}

impl ResidentSeries {
    /// Takes a sample if it is due.
    fn look(&mut self, pid: i32, now: Duration) {
        if now < self.next {
            return;
        }
        self.next = now + self.pause;
        let Some(found) = resident_counters(pid) else {
            return;
        };
        self.samples.push(ResidentSample {
            time_ms: now.as_millis() as u64,
            anonymous_bytes: found.anonymous,
            file_bytes: found.file,
            shared_bytes: found.shared,
            swap_bytes: found.swap,
        });
        if self.samples.len() > MOST_SAMPLES {
            let mut is_kept = false;
            self.samples.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
            self.pause *= 2;
        }
    }

    /// Takes the last sample, independent of the interval.
    fn end(&mut self, pid: i32, now: Duration) {
        self.next = now;
        self.look(pid, now);
    }
}

/// Result of a recording.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Path of the file, the first one if there are several.
    pub path: PathBuf,
    /// Number of events; 0 if the recording holds sums.
    pub events: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Reason of the recording's end.
    pub end: RecordingEnd,
    /// Message about the end for the user.
    pub notice: Option<String>,
}

impl Recorded {
    /// Returns true if the recording is complete. A recording that reached the maximum file size before the end is
    /// incomplete.
    pub fn is_complete(&self) -> bool {
        matches!(self.end, RecordingEnd::Finished | RecordingEnd::SizeLimit)
    }
}
