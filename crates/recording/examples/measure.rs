//! Measures the cost of a recording: bytes and time for each event, and the time to replay and to
//! open a window.
//!
//! ```text
//! cargo run --release -p memhook-recording --example measure -- [FILE.mhk | EVENTS [BLOCKS]]
//! ```
//!
//! With a file, it records the file's events again. Otherwise it runs a model of a server: four
//! threads, 16 sizes times 250 call stacks, EVENTS events (20,000,000), BLOCKS long-lived blocks
//! (100,000). Each request makes a few temporaries and replaces a random long-lived block.
//! Addresses come from free lists by size, last in, first out, as in malloc's thread caches.

use memhook_abi::{Event, Op, RawEvent};
use memhook_ledger::{Ledger, LedgerOptions};
use memhook_recording::{Meta, Options, Recording, Replay, Visitor, Writer};
use memhook_stream::Stack;
use std::time::{Duration, Instant};

/// Returns the processor time in nanoseconds.
fn cpu_ns(file: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let first = text.split(' ').next().unwrap_or_default();
    first.parse().unwrap_or(0)
}

fn thread_cpu() -> u64 {
    cpu_ns("/proc/thread-self/schedstat")
}

/// Returns the processor time of the live threads in nanoseconds.
fn process_cpu() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    let files = tasks.flatten().map(|t| t.path().join("schedstat"));
    files.map(|file| cpu_ns(&file.to_string_lossy())).sum()
}

/// Returns the processor time of all threads, including ended ones, in steps of 10 ms.
fn whole_cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = text.rsplit(')').next().unwrap_or_default();
    let fields = after_name.split_whitespace().skip(11).take(2);
    let ticks: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

/// Returns the peak resident memory of the process, in MiB.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024
}

fn find_stack(id: u32) -> Option<Stack> {
    let frame = |i: u64| 0x5555_0000_0000 + (u64::from(id) >> (i / 2)) * 64 + i * 0x1_0000;
    Some(Stack {
        function: 0,
        truncated: false,
        frames: (0..12).map(frame).collect(),
    })
}

/// Event, size in bytes, time in nanoseconds.
type Timed = (Event, u64, u64);

/// Events of one pass, written together: ring, thread, events.
#[derive(Default)]
struct Batch {
    rings: Vec<(usize, u32, Vec<Timed>)>,
}

struct Recorder {
    writer: Writer,
    ledger: Ledger,
    events: u64,
    /// Processor time of the drain's thread in nanoseconds, including checkpoints.
    writer_cpu: u64,
    longest_checkpoint: Duration,
    checkpoints: u32,
    batch: Batch,
    waiting: usize,
    now_ns: u64,
}

impl Recorder {
    fn flush(&mut self) {
        let start = thread_cpu();
        for (ring, tid, events) in &self.batch.rings {
            self.writer.begin_ring(*ring, *tid);
            for (event, size, time) in events {
                self.writer.event(*event, *size, *time);
            }
        }
        self.writer.end_pass(self.now_ns, find_stack);
        self.writer_cpu += thread_cpu() - start;
        for (ring, tid, events) in self.batch.rings.drain(..) {
            self.ledger.begin_ring(ring, tid);
            self.events += events.len() as u64;
            for (event, size, time) in events {
                self.ledger.event(event, size, time);
            }
        }
        self.ledger.end_pass(self.now_ns);
        self.waiting = 0;
        let live = self.ledger.totals().live_blocks;
        if self.writer.wants_checkpoint(live) {
            let start = thread_cpu();
            self.writer.checkpoint(&self.ledger, find_stack);
            let took = thread_cpu() - start;
            self.writer_cpu += took;
            self.checkpoints += 1;
            self.longest_checkpoint = self.longest_checkpoint.max(Duration::from_nanos(took));
        }
    }
}

impl Visitor for Recorder {
    fn begin_ring(&mut self, ring: usize, tid: u32) {
        self.batch.rings.push((ring, tid, Vec::new()));
    }
    fn event(&mut self, event: Event, size: u64, time_ns: u64) {
        if let Some(ring) = self.batch.rings.last_mut() {
            ring.2.push((event, size, time_ns));
            self.waiting += 1;
        }
    }
    fn end_pass(&mut self, now_ns: u64, _passes: u64) {
        self.now_ns = now_ns;
        self.flush();
    }
}

/// A model of a server.
struct Server {
    random: u64,
    next: u64,
    free: Vec<Vec<u64>>,
    sequences: Vec<u32>,
}

impl Server {
    fn random(&mut self, end: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 20) % end
    }

    fn publish(&mut self, out: &mut Recorder, op: Op, address: u64, size: u64, stack: u32) {
        let page = address >> 12;
        let word = ((page ^ (page >> 14)) & 16383) as usize;
        self.sequences[word] += u32::from(op == Op::Release);
        let raw = RawEvent::pack(op, address, self.sequences[word], size as u32, stack);
        if let Some(event) = raw.unpack() {
            let time = out.now_ns / 1_000_000 * 1_000_000;
            out.event(event, size, time);
        }
    }

    fn allocate(&mut self, out: &mut Recorder, site: u64) -> (u64, u64) {
        let class = site % 16;
        let size = class * 16 + 20;
        let address = self.free[class as usize].pop().unwrap_or_else(|| {
            self.next += class * 16 + 32;
            self.next
        });
        self.publish(out, Op::Allocation, address, size, 16 + site as u32 * 7);
        (address, class)
    }

    fn release(&mut self, out: &mut Recorder, (address, class): (u64, u64)) {
        self.publish(out, Op::Release, address, 0, 0);
        self.free[class as usize].push(address);
    }

    fn run(&mut self, out: &mut Recorder, events: u64, blocks: u64) {
        let mut live = Vec::new();
        let mut pass = 0;
        while out.events < events {
            for ring in 0..4 {
                out.begin_ring(ring, 1000 + ring as u32);
                while out.waiting < (ring + 1) * 1500 {
                    let kind = self.random(250);
                    let temporaries: Vec<_> = (0..3 + kind % 4)
                        .map(|i| self.allocate(out, kind * 16 + i))
                        .collect();
                    let site = kind * 16 + self.random(16);
                    let kept = self.allocate(out, site);
                    if (live.len() as u64) < blocks {
                        live.push(kept);
                    } else {
                        let at = self.random(blocks) as usize;
                        let old = std::mem::replace(&mut live[at], kept);
                        self.release(out, old);
                    }
                    for block in temporaries.into_iter().rev() {
                        self.release(out, block);
                    }
                }
            }
            pass += 1;
            out.end_pass(pass * 2_000_000, 1);
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let input = arguments.next().unwrap_or_else(|| "20000000".to_owned());
    let blocks = arguments.next().map_or(Ok(100_000), |text| text.parse())?;
    let path = std::env::temp_dir().join(format!("measure-{}.mhk", std::process::id()));
    let mut recorder = Recorder {
        writer: Writer::create(&path, &Meta::default(), &Options::default())?,
        ledger: Ledger::new(LedgerOptions::default()),
        events: 0,
        writer_cpu: 0,
        longest_checkpoint: Duration::ZERO,
        checkpoints: 0,
        batch: Batch::default(),
        waiting: 0,
        now_ns: 0,
    };
    if let Ok(events) = input.parse() {
        let mut server = Server {
            random: 88_172_645_463_325_252,
            next: 0x7f12_3456_0000,
            free: vec![Vec::new(); 16],
            sequences: vec![0; 16_384],
        };
        server.run(&mut recorder, events, blocks);
    } else {
        Recording::open(&input)?.visit(&mut recorder)?;
    }
    let events = recorder.events as f64;
    // The writer's thread lives until `finish`, so this waits until nothing more is written,
    // without ending the thread.
    let mut written = 0;
    while written != recorder.writer.written_bytes() {
        written = recorder.writer.written_bytes();
        std::thread::sleep(Duration::from_millis(300));
    }
    let other = process_cpu().saturating_sub(thread_cpu());
    let mut ledger = recorder.ledger;
    let end = recorder.writer.finish();
    let size = std::fs::metadata(&path)?.len();
    println!(
        "{} events, {size} bytes: {:.3} a event; {} checkpoints; {end}",
        recorder.events,
        size as f64 / events,
        recorder.checkpoints,
    );
    println!(
        "writing: {:.1} ns an event on the drain's thread, {:.1} on the other one: {:.1} million a second on one core; longest checkpoint {:.1} ms for {} blocks",
        recorder.writer_cpu as f64 / events,
        other as f64 / events,
        events * 1e3 / (recorder.writer_cpu + other) as f64,
        recorder.longest_checkpoint.as_secs_f64() * 1e3,
        ledger.totals().live_blocks,
    );
    ledger.finish();
    let right = ledger.totals();
    drop(ledger);
    measure_reading(&path, events, &right)?;
    println!("most memory: {} MiB", peak_memory());
    std::fs::remove_file(&path)?;
    Ok(())
}

fn measure_reading(
    path: &std::path::Path,
    events: f64,
    right: &memhook_ledger::Totals,
) -> Result<(), Box<dyn std::error::Error>> {
    let start = Instant::now();
    let recording = Recording::open(path)?;
    let opened = start.elapsed();
    let (cpu, whole) = (thread_cpu(), whole_cpu());
    let replay: Replay = recording.replay(LedgerOptions::default())?;
    let took = start.elapsed();
    println!(
        "replay: {:.3} s ({:.1} ns an event; on the processor {:.1}, of that the ledger's thread {:.1}), of that opening {:.1} ms; totals {}",
        took.as_secs_f64(),
        took.as_nanos() as f64 / events,
        (whole_cpu() - whole).as_nanos() as f64 / events,
        (thread_cpu() - cpu) as f64 / events,
        opened.as_secs_f64() * 1e3,
        if replay.totals() == *right {
            "equal"
        } else {
            "DIFFER"
        },
    );
    let (from, to) = recording.span_ns();
    let (mut longest, mut most_cpu) = (Duration::ZERO, Duration::ZERO);
    for tenth in 1..10 {
        let begin = from + (to - from) / 10 * tenth;
        let (start, cpu) = (Instant::now(), whole_cpu());
        Recording::open(path)?.window(begin, begin + 10_000_000, LedgerOptions::default())?;
        longest = longest.max(start.elapsed());
        most_cpu = most_cpu.max(whole_cpu() - cpu);
    }
    println!(
        "windows: longest of nine {:.0} ms, at most {} ms on the processor (both threads)",
        longest.as_secs_f64() * 1e3,
        most_cpu.as_millis(),
    );
    Ok(())
}
