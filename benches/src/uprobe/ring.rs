//! Rings for events with call chains, and the thread that drains them.

use super::event::{Event, explain};
use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

const PAGE: usize = 4096;
/// Size of a ring: a power of two (perf_event_open(2), "MMAP layout"), and equal to the size of
/// memhook-rs's own ring.
const DATA_BYTES: usize = 1 << 20;
/// Offsets in the first page, `struct perf_event_mmap_page`.
const HEAD: usize = 1024;
const TAIL: usize = 1032;
const RECORD_LOST: u32 = 2;
const RECORD_SAMPLE: u32 = 9;

struct Ring(NonNull<u8>);

// SAFETY: only one thread at a time uses the mapping, and the mapping is not tied to a thread.
unsafe impl Send for Ring {}

impl Ring {
    fn map(event: &Event) -> Result<Ring, String> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE + DATA_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.descriptor(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(explain("mmap of the ring of a probe"));
        }
        NonNull::new(at.cast()).map(Ring).ok_or("mmap".into())
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: both words are aligned and in the mapped first page. The kernel writes one of
        // them.
        unsafe { &*self.0.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    fn read_u64(&self, position: u64) -> u64 {
        let offset = PAGE + position as usize % DATA_BYTES;
        // SAFETY: records are aligned to 8 bytes, so a word never passes the end of the ring.
        unsafe { self.0.as_ptr().add(offset).cast::<u64>().read_volatile() }
    }

    /// Reads all records, and counts samples and lost samples.
    fn drain(&self, counts: &mut (u64, u64)) {
        let head = self.word(HEAD).load(Ordering::Acquire);
        let mut tail = self.word(TAIL).load(Ordering::Relaxed);
        while tail < head {
            let header = self.read_u64(tail);
            let (kind, bytes) = (header as u32, header >> 48);
            match kind {
                RECORD_SAMPLE => {
                    counts.0 += 1;
                    // The number of addresses, then the addresses. Every tracer has to read them.
                    let frames = self.read_u64(tail + 8);
                    for frame in 0..frames.min(bytes / 8) {
                        std::hint::black_box(self.read_u64(tail + 16 + 8 * frame));
                    }
                }
                // struct { header; u64 id; u64 lost; }
                RECORD_LOST => counts.1 += self.read_u64(tail + 16),
                _ => {}
            }
            tail += bytes.max(8);
        }
        self.word(TAIL).store(tail, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `map` and is no longer used.
        unsafe { libc::munmap(self.0.as_ptr().cast(), PAGE + DATA_BYTES) };
    }
}

/// Thread that drains rings until it is told to finish.
pub struct Reader {
    stop: Arc<AtomicBool>,
    cpu_ns: Arc<AtomicU64>,
    thread: JoinHandle<(u64, u64)>,
}

impl Reader {
    /// Starts the thread for these events.
    pub fn start(events: &[Event]) -> Result<Reader, String> {
        let rings: Result<Vec<Ring>, String> = events.iter().map(Ring::map).collect();
        let rings = rings?;
        let stop = Arc::new(AtomicBool::new(false));
        let cpu_ns = Arc::new(AtomicU64::new(0));
        let (stop_seen, cpu) = (stop.clone(), cpu_ns.clone());
        let thread = std::thread::spawn(move || {
            let mut counts = (0, 0);
            loop {
                // The flag is read before the last drain, so that nothing remains in the rings.
                let last = stop_seen.load(Ordering::Acquire);
                let (time, ()) =
                    crate::timed(|| rings.iter().for_each(|ring| ring.drain(&mut counts)));
                cpu.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
                if last {
                    return counts;
                }
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        Ok(Reader {
            stop,
            cpu_ns,
            thread,
        })
    }

    pub(super) fn cpu_ns(&self) -> u64 {
        self.cpu_ns.load(Ordering::Relaxed)
    }

    /// Returns the numbers of recorded and lost samples.
    pub fn finish(self) -> (u64, u64) {
        self.stop.store(true, Ordering::Release);
        self.thread.join().unwrap_or((0, 0))
    }
}
