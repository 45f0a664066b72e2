//! The log of memhook-rs's steps, on standard error.
//!
//! By default, commands turn the log off, because their reports have the information that people
//! want. `-v`, `-vv` and `MEMHOOK_LOG` turn it on. The agent logs its actions from the start.
//!
//! A separate thread writes the lines. Otherwise a reader that stops reading (a pager, a full pipe)
//! would stop the attacher in the middle of a step, and with it the held threads of a target. Lines
//! that do not fit into the queue are counted, and their number is printed at the end.

use anyhow::bail;
use memhook_foreign::{visible_json, visible_lines};
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::{MakeWriter, layer};
use tracing_subscriber::{Layer, Registry, layer::SubscriberExt, util::SubscriberInitExt};

/// The environment variable with a filter: `debug`, `memhook_heap=trace,info`, ...
const FILTER: &str = "MEMHOOK_LOG";
/// Prefix of the names of our crates, which are the log targets.
const OURS: &str = "memhook";
/// Name of the crate whose events count as events of the command itself.
const AGENT: &str = "memhook_agent";
/// Maximum number of lines that wait to be written. Further lines are lost.
const MOST_WAITING: usize = 1024;
/// Maximum time for which a command waits at its end for a reader of its log.
const END_PATIENCE: Duration = Duration::from_secs(1);

static VERBOSITY: AtomicU8 = AtomicU8::new(0);
static QUEUE: OnceLock<Queue> = OnceLock::new();

/// Format of the lines of a log.
#[derive(Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Lines for people
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// Sets the number of times that -v was given.
pub fn set_verbosity(count: u8) {
    VERBOSITY.store(count, Relaxed);
}

/// Returns true if reports must not leave anything out.
pub fn is_verbose() -> bool {
    VERBOSITY.load(Relaxed) > 0
}

/// Starts the log. `least` is the level without -v.
pub fn start(format: Format, least: LevelFilter) -> anyhow::Result<()> {
    begin(format, least, None)
}

/// Like [`start`], but for a command whose screen the log would cover.
pub fn start_beside_screen() -> anyhow::Result<()> {
    let wanted = is_verbose() || std::env::var_os(FILTER).is_some_and(|filter| !filter.is_empty());
    anyhow::ensure!(
        !(wanted && io::stderr().is_terminal()),
        "the log would cover the screen: send it to a file, with 2>FILE"
    );
    start(Format::Text, LevelFilter::OFF)
}

/// Starts the log, and also keeps all of it in memory.
pub fn start_with_copy(least: LevelFilter) -> anyhow::Result<Copy> {
    let copy = Copy::default();
    begin(Format::Text, least, Some(copy.clone()))?;
    Ok(copy)
}

fn begin(format: Format, least: LevelFilter, copy: Option<Copy>) -> anyhow::Result<()> {
    let wanted = match std::env::var(FILTER) {
        Ok(filter) if !filter.is_empty() => {
            let parsed: Result<Targets, _> = filter.parse();
            let Ok(parsed) = parsed else {
                bail!("{FILTER}={filter} is not a filter: try debug, or memhook_heap=trace,info");
            };
            // A level without a target applies to our crates only. Logs of libraries are for their
            // developers.
            let level = parsed.default_level().unwrap_or(LevelFilter::OFF);
            let others = parsed.with_default(LevelFilter::OFF);
            others.with_target(OURS, level)
        }
        _ => {
            let steps = match VERBOSITY.load(Relaxed) {
                // Otherwise each process that the agent traces would add its steps to the log.
                0 => least.min(LevelFilter::WARN),
                1 => LevelFilter::INFO,
                2 => LevelFilter::DEBUG,
                _ => LevelFilter::TRACE,
            };
            let all = Targets::new().with_target(OURS, steps);
            all.with_target(AGENT, steps.max(least))
        }
    };
    let is_on = wanted.iter().any(|(_, level)| level != LevelFilter::OFF);
    let shown = is_on.then(|| {
        let queue = Queue::start(format);
        let lines = layer().with_ansi(false).with_writer(move || Line(queue));
        match format {
            Format::Text if has_times_already() => lines.without_time().boxed(),
            Format::Text => lines.boxed(),
            Format::Json => lines.json().flatten_event(true).boxed(),
        }
        .with_filter(wanted)
    });
    let all = Targets::new().with_target(OURS, LevelFilter::DEBUG);
    let copied = copy.map(|copy| {
        let lines = layer::<Registry>().with_ansi(false).with_writer(copy);
        lines.with_filter(all)
    });
    if shown.is_some() || copied.is_some() {
        tracing_subscriber::registry()
            .with(copied)
            .with(shown)
            .init();
    }
    Ok(())
}

/// Returns true if standard error leads to the journal, which records the time of each line
/// (systemd.exec(5), JOURNAL_STREAM).
fn has_times_already() -> bool {
    std::env::var_os("JOURNAL_STREAM").is_some()
}

/// Waits briefly until all lines are written.
pub fn finish() {
    if let Some(queue) = QUEUE.get() {
        let (done, is_done) = channel();
        if queue.lines.send(Message::End(done)).is_ok() {
            let _ = is_done.recv_timeout(END_PATIENCE);
        }
    }
}

enum Message {
    Line(String),
    End(Sender<()>),
}

/// Queue to the thread that writes.
struct Queue {
    lines: SyncSender<Message>,
    lost: AtomicU64,
    format: Format,
}

impl Queue {
    /// Starts the thread, once.
    fn start(format: Format) -> &'static Queue {
        QUEUE.get_or_init(|| {
            let (lines, to_write) = sync_channel(MOST_WAITING);
            let thread = std::thread::Builder::new().name("log".into());
            // Without the thread, the lines are lost, and counted.
            let _ = thread.spawn(move || write(&to_write));
            Queue {
                lines,
                lost: AtomicU64::new(0),
                format,
            }
        })
    }

    fn add(&self, line: &str) {
        let line = match self.format {
            Format::Text => visible_lines(line),
            Format::Json => visible_json(line),
        };
        if self
            .lines
            .try_send(Message::Line(line.into_owned()))
            .is_err()
        {
            self.lost.fetch_add(1, Relaxed);
        }
    }
}

fn write(lines: &Receiver<Message>) {
    for message in lines {
        match message {
            // If standard error cannot be written to, there is no way to inform the user.
            Message::Line(line) => drop(io::stderr().write_all(line.as_bytes())),
            Message::End(done) => {
                let lost = QUEUE.get().map_or(0, |queue| queue.lost.load(Relaxed));
                // A log of JSON objects must contain nothing else.
                let is_text = QUEUE
                    .get()
                    .is_some_and(|queue| queue.format == Format::Text);
                if lost > 0 && is_text {
                    eprintln!(
                        "memhook-rs: {lost} lines of the log are lost, because its reader was too slow"
                    );
                }
                drop(done);
            }
        }
    }
}

/// A line that is queued as a whole.
struct Line(&'static Queue);

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.add(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Copy of the log's lines, in memory.
#[derive(Clone, Default)]
pub struct Copy(Arc<Mutex<Vec<u8>>>);

impl Copy {
    /// Returns the lines so far.
    pub fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        visible_lines(&String::from_utf8_lossy(&bytes)).into_owned()
    }
}

impl Write for Copy {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Copy {
    type Writer = Copy;

    fn make_writer(&self) -> Copy {
        self.clone()
    }
}
