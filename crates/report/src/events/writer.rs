//! The thread that names call stacks and writes lines.

use super::queue::{EventQueue, Item};
use super::record::{EventsBegin, EventsEnd, Record};
use crate::{Backtrace, frames_at};
use memhook_foreign::visible_json;
use memhook_ledger::BlockOf;
use memhook_symbols::{ModuleFile, Symbolizer};
use rustc_hash::FxHashSet;
use std::io::{BufWriter, Write};
use std::time::Duration;

/// Number of records whose call stacks are symbolized in one batch.
const CHUNK: usize = 4096;
/// Bytes per write.
const PIECE: usize = 4096;
/// Number of attempts to find the module of an address. A newly loaded module becomes known after a
/// short delay.
const MODULE_LOOKS: usize = 3;
const MODULE_PAUSE: Duration = Duration::from_millis(20);
/// Time limit for names. Names that arrive later are omitted.
const PATIENCE: Duration = Duration::from_secs(30);

/// Source of the names of stacks and threads.
pub trait EventSource: Send {
    /// Returns the backtrace with this id.
    fn backtrace(&mut self, id: u32) -> Option<Backtrace>;
    /// Returns the name of the thread with this index, and its id as seen by the process itself.
    fn thread(&mut self, index: u16) -> (u32, String);
    /// Returns the modules, if they have changed since the last call.
    fn new_modules(&mut self) -> Option<Vec<ModuleFile>>;
}

/// Result of a writer.
#[derive(Debug)]
pub struct EventsWritten {
    /// Reason for an early end. A closed pipe is not an error.
    pub error: Option<std::io::Error>,
}

/// Writes a stream until it ends, or until the reader closes it.
pub fn write_events(
    queue: &EventQueue,
    begin: &EventsBegin,
    source: Box<dyn EventSource>,
    symbols: Symbolizer,
    output: impl Write,
) -> EventsWritten {
    let mut writer = Writer {
        queue,
        source,
        symbols,
        stacks: FxHashSet::default(),
        threads: FxHashSet::default(),
        output: BufWriter::with_capacity(1 << 16, Paced { output, queue }),
    };
    let written = writer.all(begin);
    if written.is_err() {
        queue.close();
    }
    let is_news = |error: &std::io::Error| error.kind() != std::io::ErrorKind::BrokenPipe;
    EventsWritten {
        error: written.err().filter(is_news),
    }
}

struct Writer<'a, W: Write> {
    queue: &'a EventQueue,
    source: Box<dyn EventSource>,
    symbols: Symbolizer,
    /// Stacks whose records have been written.
    stacks: FxHashSet<u32>,
    threads: FxHashSet<u16>,
    output: BufWriter<Paced<'a, W>>,
}

/// Output written in pieces of a few kilobytes, so that the reader's progress can be observed. A
/// pipe either takes a whole piece or blocks the writer.
struct Paced<'a, W> {
    output: W,
    queue: &'a EventQueue,
}

impl<W: Write> Write for Paced<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.output.write(&bytes[..bytes.len().min(PIECE)])?;
        self.queue.advance();
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.output.flush()
    }
}

/// Returns the stack of a record, or 0.
fn stack_of(item: &Item) -> u32 {
    match item {
        Item::Alloc { stack, .. } | Item::Realloc { stack, .. } | Item::Pairs { stack, .. } => {
            *stack
        }
        Item::Free { by, .. } => by.map_or(0, |(_, stack)| stack),
        Item::Lost(_) | Item::Gap { .. } => 0,
    }
}

fn thread_of(item: &Item) -> Option<u16> {
    match item {
        Item::Alloc { block, .. } | Item::Pairs { block, .. } => Some(block.thread),
        Item::Realloc { new, .. } => Some(new.thread),
        Item::Free { by, .. } => by.map(|(thread, _)| thread),
        Item::Lost(_) | Item::Gap { .. } => None,
    }
}

impl<W: Write> Writer<'_, W> {
    fn all(&mut self, begin: &EventsBegin) -> std::io::Result<()> {
        self.foreign_line(&Record::Begin(begin))?;
        self.output.flush()?;
        loop {
            let (items, end) = self.queue.take();
            for chunk in items.chunks(CHUNK) {
                self.name(chunk)?;
                for item in chunk {
                    self.item(item)?;
                }
            }
            if let Some(end) = end {
                return self.end(&end);
            }
            self.output.flush()?;
        }
    }

    fn end(&mut self, end: &EventsEnd) -> std::io::Result<()> {
        self.line(&Record::End(end))?;
        self.output.flush()
    }

    fn line(&mut self, record: &Record<'_>) -> std::io::Result<()> {
        serde_json::to_writer(&mut self.output, record)?;
        self.output.write_all(b"\n")
    }

    /// Writes a line that contains names chosen by the target.
    fn foreign_line(&mut self, record: &Record<'_>) -> std::io::Result<()> {
        let text = serde_json::to_string(record)?;
        self.output.write_all(visible_json(&text).as_bytes())?;
        self.output.write_all(b"\n")
    }

    /// Writes the names of all stacks and threads that first occur in these records.
    fn name(&mut self, items: &[Item]) -> std::io::Result<()> {
        let (mut stacks, mut threads) = (Vec::new(), Vec::new());
        for item in items {
            let stack = stack_of(item);
            if stack != 0 && self.stacks.insert(stack) {
                stacks.push(stack);
            }
            threads.extend(thread_of(item).filter(|&thread| self.threads.insert(thread)));
        }
        for id in threads {
            let (tid, name) = self.source.thread(id);
            self.foreign_line(&Record::Thread { id, tid, name })?;
        }
        if stacks.is_empty() {
            return Ok(());
        }
        let found: Vec<(u32, Backtrace)> = stacks
            .into_iter()
            .map(|id| (id, self.source.backtrace(id).unwrap_or_default()))
            .collect();
        let addresses = || found.iter().flat_map(|(_, stack)| &stack.addresses);
        for look in 0..MODULE_LOOKS {
            if let Some(modules) = self.source.new_modules() {
                self.symbols.set_modules(modules);
            }
            let is_known = |&at: &u64| self.symbols.location(at).module.is_some();
            if look + 1 == MODULE_LOOKS || addresses().all(is_known) {
                break;
            }
            std::thread::sleep(MODULE_PAUSE);
        }
        self.symbols.request(addresses().copied());
        self.symbols.is_ready(PATIENCE);
        for (id, stack) in found {
            let addresses = stack.addresses.iter();
            let frames = addresses.flat_map(|&at| frames_at(&self.symbols, at));
            let record = Record::Stack {
                id,
                called: stack.kind().map(str::to_owned),
                frames: frames.collect(),
                is_cut: stack.truncated,
            };
            self.foreign_line(&record)?;
        }
        Ok(())
    }

    fn item(&mut self, item: &Item) -> std::io::Result<()> {
        let record = match *item {
            Item::Alloc { block, stack } => Record::Alloc {
                address: block.address,
                size: block.size,
                thread: block.thread,
                time_ns: block.time_ns,
                stack,
            },
            Item::Free { block, by, time_ns } => Record::Free {
                address: block.address,
                size: block.size,
                thread: by.map(|(thread, _)| thread),
                time_ns,
                stack: by.map(|(_, stack)| stack).filter(|&stack| stack != 0),
            },
            Item::Realloc { old, new, stack } => {
                let BlockOf { address, size, .. } = old;
                Record::Realloc {
                    old_address: address,
                    old_size: size,
                    address: new.address,
                    size: new.size,
                    thread: new.thread,
                    time_ns: new.time_ns,
                    stack,
                }
            }
            Item::Pairs {
                block,
                stack,
                count,
            } => Record::Pairs {
                count,
                address: block.address,
                size: block.size,
                thread: block.thread,
                time_ns: block.time_ns,
                stack,
            },
            Item::Lost(lost) => Record::Lost(lost),
            Item::Gap { from_ns, until_ns } => Record::Gap { from_ns, until_ns },
        };
        self.line(&record)
    }
}
