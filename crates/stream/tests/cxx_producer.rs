//! Tests the hook's ring code, compiled unchanged, against this crate's drain, with another process, several threads,
//! and rings so small that they are full most of the time and often change owners.

mod hook_program;

use hook_program::{compile, region_file};
use memhook_abi::{Event, Op, ring_state};
use memhook_stream::{Admission, Config, Drain, MarkRenewal, Plan, Region, Sink, ThreadNumbers};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const RING_BYTES: usize = 4096;
/// Mean bytes between samples.
const SAMPLE_BYTES: u64 = 4096;

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    // These tests drain the rings on a thread that may pause for seconds. Such a pause must not lose an event.
    let patience = "-DMEMHOOK_TEST_PATIENCE_NS=60000000000";
    PROGRAM.get_or_init(|| compile("producer.cc", "memhook-producer", &[patience]))
}

/// Offset of the thread id in glibc's `struct pthread`.
const TID_OFFSET: u32 = 720;

/// Returns a region for one attach with these flags, and its file. Rings begin with a page of events.
fn new_region(flags: u32, ring_bytes: usize) -> (OwnedFd, Region) {
    let file = region_file(ring_bytes);
    let region = Region::map(&file).unwrap();
    let config = Config {
        epoch: 5,
        ring_bytes: ring_bytes as u64,
        depth: 1,
        flags,
        max_size: u64::MAX,
        sample_bytes: SAMPLE_BYTES,
        plan: Plan {
            first_ring: RING_BYTES as u64,
            ..Plan::default()
        },
        ..Config::default()
    };
    region.initialize(&config).unwrap();
    region.set_thread_numbers(ThreadNumbers {
        offset: TID_OFFSET,
        ..ThreadNumbers::default()
    });
    (file, region)
}

/// Returns event `i` of thread `t`: sequence, size, stack.
fn expected(t: u64, i: u64) -> (u32, u64, u32) {
    let size = if i % 1000 == 999 {
        (1 << 32) + i
    } else {
        (i * 0x9e37_79b1 + t) & 0x7fff_ffff
    };
    (
        (i * 5 + t) as u32 & 0x3f_ffff,
        size,
        (i * 3 + t) as u32 & 0x3ff_ffff,
    )
}

#[derive(Default)]
struct Check {
    here: (usize, u32),
    /// For each thread: its ring and thread id, its events, and the time of the last event.
    threads: BTreeMap<u64, ((usize, u32), u64, u64)>,
    now: u64,
}

impl Sink for Check {
    fn begin_ring(&mut self, ring: usize, tid: u32) {
        assert_ne!(tid, 0);
        self.here = (ring, tid);
    }

    fn event(&mut self, event: Event, size: u64, time_ns: u64) {
        let code = (event.address >> 3) - 1;
        let (t, i) = (code >> 32, code & 0xffff_ffff);
        let (place, count, time) = self.threads.entry(t).or_insert((self.here, 0, 0));
        assert_eq!(*place, self.here, "thread {t} changed its ring");
        assert_eq!(i, *count, "thread {t}: an event was lost, doubled or moved");
        assert_eq!(event.op, Op::Allocation);
        assert_eq!((event.sequence, size, event.stack), expected(t, i));
        assert!(*time <= time_ns && time_ns <= self.now);
        *count += 1;
        *time = time_ns;
    }

    fn end_pass(&mut self) {}
}

fn free_ended(region: &Region, child: &Child) -> usize {
    let ended = |tid| !Path::new(&format!("/proc/{}/task/{tid}", child.id())).exists();
    region
        .rings()
        .filter(|ring| ring.state == ring_state::CLAIMED && ring.tid != 0 && ring.waiting == 0)
        .filter(|ring| ended(ring.tid) && region.free_ring(ring.index))
        .count()
}

/// Live blocks according to the events of [`run_folding`], and the number of reports of them.
#[derive(Default)]
struct Blocks {
    live: BTreeMap<u64, u64>,
    allocations: u64,
    releases: u64,
    /// Pair events, and the allocations and releases that they represent.
    pairs: (u64, u64),
}

impl Sink for Blocks {
    fn begin_ring(&mut self, _ring: usize, _tid: u32) {}

    fn event(&mut self, event: Event, size: u64, _time_ns: u64) {
        let number = (event.address & 0xffff_ffff) / 16 - 1;
        match event.op {
            Op::Allocation => {
                assert_eq!((size, event.stack), (number & 0xffff, 7));
                assert_eq!(self.live.insert(event.address, size), None, "{event:?}");
                self.allocations += 1;
            }
            Op::Pair => {
                assert_eq!((size, event.stack), (number & 0xffff, 7));
                assert!(!self.live.contains_key(&event.address), "{event:?}");
                let count = u64::from(event.sequence);
                assert!((1..=8).contains(&count), "{event:?}");
                self.allocations += count;
                self.releases += count;
                self.pairs.0 += 1;
                self.pairs.1 += count;
            }
            Op::Release => {
                assert!(self.live.remove(&event.address).is_some(), "{event:?}");
                self.releases += 1;
            }
            op => panic!("{op:?}"),
        }
    }

    fn end_pass(&mut self) {}
}

/// Runs threads that allocate and release, with passes in quick succession, so that nearly every fold meets a claim.
fn run_folding(threads: u64, events: u64, ring_bytes: usize) -> Blocks {
    let (file, region) = new_region(memhook_abi::flags::FOLD_PAIRS, ring_bytes);
    let mut child = Command::new(program())
        .arg(file.as_raw_fd().to_string())
        .args([1, threads, events].map(|n: u64| n.to_string()))
        .arg("fold")
        .spawn()
        .unwrap();
    let mut drain = Drain::new();
    let admission = Admission::default();
    let mut blocks = Blocks::default();
    let start = Instant::now();
    let mut passes = 0;
    loop {
        let ended = child.try_wait().unwrap();
        // The clock does not advance with each pass, because an event after a tick is not folded.
        region.set_clock_ns(start.elapsed().as_millis() as u64 + 1);
        admission.answer(&region);
        assert_eq!(drain.pass(&region, &mut blocks).damaged, 0);
        region.grant(drain.waiting());
        passes += 1;
        if let Some(status) = ended {
            assert!(status.success(), "{status}");
            break;
        }
    }
    drain.last_pass(&region, &mut blocks);
    assert!(passes > 10, "only {passes} passes");
    let waiting: u64 = region.rings().map(|ring| ring.waiting).sum();
    assert_eq!((waiting, region.losses().dropped), (0, 0));
    blocks
}

/// Returns the allocations of [`run_folding`]'s thread `t`.
fn allocated(t: u64, events: u64) -> u64 {
    let mut random = t + 1;
    let mut allocations = 0;
    for _ in 0..events {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let keep = random >> 40 & 1 == 1;
        allocations += if keep { 1 } else { 1 + (random >> 50 & 7) };
    }
    allocations
}

#[test]
fn folded_pairs_are_all_counted() {
    let (threads, events) = (3, 100_000);
    for ring_bytes in [RING_BYTES, 16 * RING_BYTES] {
        check_folding(threads, events, ring_bytes);
    }
}

fn check_folding(threads: u64, events: u64, ring_bytes: usize) {
    let blocks = run_folding(threads, events, ring_bytes);
    assert!(blocks.live.is_empty(), "{:?}", blocks.live.len());
    let expected: u64 = (0..threads).map(|t| allocated(t, events)).sum();
    assert_eq!((blocks.allocations, blocks.releases), (expected, expected));
    let (pairs, folded) = blocks.pairs;
    assert!(folded * 3 > expected, "{folded} of {expected} folded");
    assert!(pairs * 2 < folded, "{pairs} pairs for {folded}");
}

/// Records of threads that sample while their rings are nearly full.
#[derive(Default)]
struct Adapted {
    mean_bytes: u64,
    changes: u64,
    live: BTreeMap<u64, u64>,
    exact: u64,
    samples: u64,
    /// Estimated bytes of all allocations, and the variance of the estimate.
    bytes: f64,
    variance: f64,
}

impl Sink for Adapted {
    fn begin_ring(&mut self, _ring: usize, _tid: u32) {
        self.mean_bytes = 0;
    }

    fn set_sampling(&mut self, mean_bytes: u64) {
        self.mean_bytes = mean_bytes;
        self.changes += 1;
    }

    fn event(&mut self, event: Event, size: u64, _time_ns: u64) {
        match event.op {
            Op::Allocation => {
                let stack = if self.mean_bytes != 0 { 2 } else { 1 };
                assert_eq!(event.stack, stack, "{event:?}");
                // No release of a recorded block is missing.
                assert_eq!(self.live.insert(event.address, size), None, "{event:?}");
                let bytes = size as f64;
                if self.mean_bytes != 0 {
                    let weight = 1.0 / (1.0 - (-bytes / self.mean_bytes as f64).exp());
                    self.samples += 1;
                    self.bytes += weight * bytes;
                    self.variance += (weight - 1.0) * weight * bytes * bytes;
                } else {
                    self.exact += 1;
                    self.bytes += bytes;
                }
            }
            // A release of an unknown block, which was not recorded.
            Op::Release => drop(self.live.remove(&event.address)),
            op => panic!("{op:?}"),
        }
    }

    fn end_pass(&mut self) {}
}

/// Runs three threads that sample. `each_pass` is called with the number of the pass.
fn adapted(flags: u32, each_pass: impl Fn(&Region, u64)) -> Adapted {
    let (threads, events) = (3, 400_000);
    let (file, region) = new_region(flags, RING_BYTES);
    let mut child = Command::new(program())
        .arg(file.as_raw_fd().to_string())
        .args([1, threads, events].map(|n: u64| n.to_string()))
        .arg("adapt")
        .spawn()
        .unwrap();
    let (mut drain, admission) = (Drain::new(), Admission::default());
    let (mut found, mut pages, mut renewals) = (Adapted::default(), MarkRenewal::default(), 0);
    let has_pages = flags & memhook_abi::flags::BUDGET != 0;
    let start = Instant::now();
    for pass in 0.. {
        let ended = child.try_wait().unwrap();
        // The clock runs a thousand times too fast, to cause many changes.
        region.set_clock_ns(start.elapsed().as_micros() as u64 * 1_000_000);
        admission.answer(&region);
        each_pass(&region, pass);
        assert_eq!(drain.pass(&region, &mut found).damaged, 0);
        // This runs continuously, so that pages lose their marks.
        if has_pages && pages.is_at_rest() {
            pages.begin(&region);
        }
        if pages.step(&region) {
            let live = found.live.keys();
            live.for_each(|&address| pages.enter(&region, address));
            pages.finish(&region);
            renewals += 1;
        }
        if let Some(status) = ended {
            assert!(status.success(), "{status}");
            break;
        }
    }
    drain.last_pass(&region, &mut found);
    println!("marks of pages were renewed {renewals} times");
    assert!(!has_pages || renewals > 2);
    assert_eq!(region.losses().dropped, 0);
    assert!(found.live.is_empty(), "{} blocks", found.live.len());
    assert!(found.changes > 10, "only {} changes", found.changes);
    assert!(found.exact > 1_000 && found.samples > 100);
    let truth: u64 = (0..threads).map(|t| allocated_bytes(t, events)).sum();
    // The hook's random numbers are seeded with the time, so each run is different.
    let deviations = (found.bytes - truth as f64) / found.variance.sqrt();
    assert!(deviations.abs() < 6.0, "{deviations} standard errors");
    found
}

/// Each change of the sampling appears at the right position in the ring, every recorded block's release arrives, and
/// the estimate of the sum of all sizes is unbiased.
#[test]
fn rings_that_are_nearly_full_take_samples() {
    adapted(memhook_abi::flags::ADAPT_WHEN_FULL, |_, _| {});
}

/// The same holds if the attacher requests the samples, at distances that change continuously.
#[test]
fn samples_are_taken_as_ordered() {
    adapted(
        memhook_abi::flags::BUDGET | memhook_abi::flags::LIVE_FILTER,
        |region, pass| {
            let largest = SAMPLE_BYTES.ilog2() as u64;
            let order = match pass / 50 % 4 {
                0 => 0,
                other => 1 << (largest - 2 * (other - 1)),
            };
            region.order_sampling(order);
        },
    );
}

/// Neither short waits nor earlier waits lead to sampling.
#[test]
fn a_thread_waits_for_a_while_before_it_takes_samples() {
    let (file, _region) = new_region(memhook_abi::flags::ADAPT_WHEN_FULL, RING_BYTES);
    let status = Command::new(program())
        .arg(file.as_raw_fd().to_string())
        .args(["1", "1", "0", "waits"])
        .status();
    let status = status.expect("it runs");
    assert!(status.success(), "{status}");
}

/// Returns the allocations of thread `t` in that run.
fn allocated_bytes(t: u64, events: u64) -> u64 {
    let mut random = t + 1;
    let mut sum = 0;
    for _ in 0..events {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        sum += 1 + (random >> 20) % 516;
    }
    sum
}

/// One run of the producer, drained to its end.
struct Run {
    check: Check,
    /// Number of times that a ring was seen nearly full.
    full: usize,
    /// Number of rings that got a new owner.
    freed: usize,
    /// Largest number of events that were seen in a ring.
    most: u64,
}

fn run(waves: u64, threads: u64, events: u64, ring_bytes: usize) -> Run {
    let (file, region) = new_region(memhook_abi::flags::LONE_RECORDER, ring_bytes);
    let mut child = Command::new(program())
        .arg(file.as_raw_fd().to_string())
        .args([waves, threads, events].map(|n: u64| n.to_string()))
        .spawn()
        .unwrap();
    let start = Instant::now();
    let mut drain = Drain::new();
    let admission = Admission::default();
    let mut check = Check::default();
    let (mut full, mut freed, mut most) = (0, 0, 0);
    loop {
        check.now = start.elapsed().as_nanos() as u64 + 1;
        region.set_clock_ns(check.now);
        admission.answer(&region);
        let ended = child.try_wait().unwrap();
        most = region.rings().map(|ring| ring.waiting).fold(most, u64::max);
        full += region.rings().filter(|ring| ring.waiting > 250).count();
        let stats = drain.pass(&region, &mut check);
        assert_eq!(stats.damaged, 0);
        region.grant(drain.waiting());
        freed += free_ended(&region, &child);
        if let Some(status) = ended {
            assert!(status.success(), "{status}");
            break;
        }
        if stats.events == 0 {
            // A pause between two passes.
            std::thread::sleep(Duration::from_micros(20));
        }
    }
    assert_eq!(check.threads.len() as u64, waves * threads);
    for (t, (_, count, _)) in &check.threads {
        assert_eq!(*count, events, "events of thread {t}");
    }
    let losses = region.losses();
    assert_eq!((losses.dropped, losses.ringless), (0, 0));
    Run {
        check,
        full,
        freed,
        most,
    }
}

#[test]
fn nothing_is_lost_and_nothing_is_torn() {
    let Run { full, freed, .. } = run(40, 3, 20_000, RING_BYTES);
    assert!(full > 100, "the rings were full only {full} times");
    assert!(freed > 10, "only {freed} rings changed hands");
}

/// New threads get the memory of ended threads, and with it their thread pointers, while the rings of the ended threads
/// are still drained. Each thread nevertheless has its own ring and keeps it.
#[test]
fn threads_never_take_another_ones_ring() {
    let Run { full, freed, .. } = run(40, 3, 20_000, RING_BYTES);
    assert!(full > 100, "the rings were full only {full} times");
    assert!(freed > 10, "only {freed} rings changed hands");
    // The threads are so short-lived that most of them end before they are seen, and there are as many threads as
    // rings.
    run(120, 8, 20, RING_BYTES);
}

/// Rings that begin with 256 places and are always full use their grants while events are written and taken.
#[test]
fn rings_grow_and_lose_nothing() {
    let Run { freed, most, .. } = run(8, 3, 200_000, 256 * RING_BYTES);
    assert!(most > 4 * 256, "no ring had more than {most} events");
    assert!(freed > 10, "only {freed} rings changed hands");
    let one = run(1, 1, 400_000, 4 * RING_BYTES).most;
    assert!((257..=1024).contains(&one), "{one} events");
}

/// The producer counts the increments of a sequence word that all threads share.
#[test]
fn no_increment_is_lost_when_the_second_thread_comes() {
    for _ in 0..100 {
        assert_eq!(run(1, 3, 3_000, RING_BYTES).check.threads.len(), 3);
    }
}
