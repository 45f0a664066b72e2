//! A running `emit`, and a listener for its probes. The listener uses perf_event_open(2), like every tracer based on
//! the kernel's probes.

use crate::{Target, binary, patience};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io::{BufReader, Error};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

/// A running `memhook-rs emit`; dropping it kills the process.
pub struct Emitter {
    child: Child,
    errors: BufReader<ChildStderr>,
    _output: BufReader<ChildStdout>,
    /// Location of the probes, as reported.
    pub place: Value,
}

impl Emitter {
    /// Runs `emit` on a target; returns when every slot is patched.
    pub fn start(target: &Target, options: &[&str]) -> Emitter {
        let mut child = Command::new(binary())
            .args(["emit", &target.pid().to_string(), "--json"])
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("memhook-rs starts");
        let mut errors = BufReader::new(child.stderr.take().expect("piped"));
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let line = patience::line(&mut errors);
        assert!(line.starts_with("Emitting from"), "{line}");
        let place = patience::line(&mut output);
        Emitter {
            child,
            errors,
            _output: output,
            place: serde_json::from_str(&place).expect("JSON"),
        }
    }

    /// Returns the path of the file with the probes.
    pub fn path(&self) -> &str {
        self.place["path"].as_str().expect("a path")
    }

    /// Returns the file offsets of the instruction and of the semaphore of the probe with this
    /// name.
    pub fn offsets(&self, name: &str) -> (u64, u64) {
        let probes = self.place["probes"].as_array().expect("probes");
        let probe = probes.iter().find(|p| p["name"] == name).expect(name);
        let number = |field: &str| probe[field].as_u64().expect(field);
        (number("offset"), number("semaphore_offset"))
    }

    /// Returns the number of listeners of the probe with this name, according to its semaphore in the target.
    pub fn listeners(&self, target: &Target, name: &str) -> u16 {
        let (_, offset) = self.offsets(name);
        let first = self.path().rsplit('/').next().expect("a name");
        let maps = target.maps();
        let parsed = maps.lines().filter_map(parse);
        // In map_files the file name is the range of the first mapping.
        let of = |m: &Mapped| m.path.ends_with(first) || m.range == first;
        let inode = parsed.clone().find(of).expect("the hook").inode;
        let mut all = parsed.filter(|m| m.inode == inode && m.is_writable);
        let data = all.find(|m| (m.offset..m.offset + (m.end - m.start)).contains(&offset));
        let data = data.expect("its data");
        let memory = File::open(format!("/proc/{}/mem", target.pid())).expect("a child's memory");
        let mut bytes = [0; 2];
        let at = data.start + offset - data.offset;
        memory.read_exact_at(&mut bytes, at).expect("mapped");
        u16::from_ne_bytes(bytes)
    }

    /// Asks `emit` to detach, which must succeed. Returns the output since the start.
    pub fn finish(mut self) -> String {
        // SAFETY: kill takes plain integers; the child has not been waited for.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGINT) };
        let mut said = String::new();
        std::io::Read::read_to_string(&mut self.errors, &mut said).expect("readable");
        let status = patience::end_of(&mut self.child);
        assert!(status.success(), "{status}: {said}");
        said
    }

    /// Kills `emit`, so that it cannot clean up.
    pub fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("reaped");
    }
}

impl Drop for Emitter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Clone)]
struct Mapped<'a> {
    range: &'a str,
    start: u64,
    end: u64,
    offset: u64,
    inode: &'a str,
    is_writable: bool,
    path: &'a str,
}

fn parse(line: &str) -> Option<Mapped<'_>> {
    let mut words = line.split_ascii_whitespace();
    let range = words.next()?;
    let (start, end) = range.split_once('-')?;
    let permissions = words.next()?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let offset = number(words.next()?)?;
    let inode = words.nth(1)?;
    Some(Mapped {
        range,
        start: number(start)?,
        end: number(end)?,
        offset,
        inode,
        is_writable: permissions.contains('w'),
        path: words.next().unwrap_or(""),
    })
}

/// Arguments of a probe, as received by a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// First argument.
    pub block: u64,
    /// Second argument of an allocation.
    pub size: u64,
    /// Third argument.
    pub weighted_bytes: u64,
}

/// A listener for one probe in all processes that map its file. The kernel counts the listener in the semaphore.
pub struct Listener {
    rings: Vec<Ring>,
}

/// Size of each processor's event buffer in pages; a power of two.
const PAGES: usize = 1024;
const PAGE: usize = 4096;

impl Listener {
    /// Listens to the probe with this name. Returns `None` if the kernel forbids this here.
    pub fn start(emitter: &Emitter, name: &str) -> Option<Listener> {
        let kind = std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type").ok()?;
        let kind: u64 = kind.trim().parse().ok()?;
        let path = CString::new(emitter.path()).expect("no zero byte");
        let (offset, semaphore) = emitter.offsets(name);
        // struct perf_event_attr (include/uapi/linux/perf_event.h) in words of 8 bytes: type and
        // size, config, period, sample_type; flags at word 5, config1 and config2 at words 7 and 8,
        // sample_regs_user at word 10.
        const BYTES: usize = 112;
        const TIME_AND_REGISTERS: u64 = 1 << 2 | 1 << 12;
        let mut attributes = [0u64; BYTES / 8];
        attributes[0] = kind | (BYTES as u64) << 32;
        // /sys/bus/event_source/devices/uprobe/format/ref_ctr_offset
        attributes[1] = semaphore << 32;
        attributes[2] = 1;
        attributes[3] = TIME_AND_REGISTERS;
        attributes[5] = 1; // disabled
        attributes[7] = path.as_ptr() as u64;
        attributes[8] = offset;
        // asm/perf_regs.h: rdx, rsi, rdi.
        attributes[10] = 1 << 3 | 1 << 4 | 1 << 5;
        let mut rings = Vec::new();
        for processor in online_processors() {
            // SAFETY: the kernel reads the attributes and the path, which are valid until the call returns.
            let file = unsafe {
                libc::syscall(
                    libc::SYS_perf_event_open,
                    attributes.as_ptr(),
                    -1,
                    processor,
                    -1,
                    8, // PERF_FLAG_FD_CLOEXEC
                )
            };
            if file < 0 {
                eprintln!("perf_event_open: {}", Error::last_os_error());
                return None;
            }
            // SAFETY: a new file descriptor without another owner.
            rings.push(Ring::new(unsafe { OwnedFd::from_raw_fd(file as i32) }));
        }
        for ring in &rings {
            ring.enable();
        }
        Some(Listener { rings })
    }

    /// Returns the data since the last call, in chronological order. Fails if any data was lost.
    pub fn take(&mut self) -> Vec<Told> {
        let mut all: Vec<(u64, Told)> = Vec::new();
        for ring in &mut self.rings {
            ring.take(&mut all);
        }
        all.sort_by_key(|(time, _)| *time);
        all.into_iter().map(|(_, told)| told).collect()
    }
}

fn online_processors() -> Vec<i32> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").expect("sysfs");
    let mut found = Vec::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.parse::<i32>().expect("a number");
        found.extend(number(first)..=number(last));
    }
    found
}

/// Event ring of one processor.
struct Ring {
    event: OwnedFd,
    memory: *mut u8,
    taken: u64,
}

impl Ring {
    fn new(event: OwnedFd) -> Ring {
        let (bytes, protection) = ((PAGES + 1) * PAGE, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping of a descriptor that we own.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                0,
            )
        };
        assert_ne!(memory, libc::MAP_FAILED, "{}", Error::last_os_error());
        Ring {
            event,
            memory: memory.cast(),
            taken: 0,
        }
    }

    fn enable(&self) {
        // _IO('$', 0) of linux/perf_event.h
        const ENABLE: u64 = 0x2400;
        // SAFETY: the request takes no argument.
        let result = unsafe { libc::ioctl(self.event.as_raw_fd(), ENABLE, 0) };
        assert_eq!(result, 0, "{}", Error::last_os_error());
    }

    fn word(&self, at: u64) -> u64 {
        let at = at as usize % (PAGES * PAGE);
        // SAFETY: records are 8-byte aligned, so a word does not cross the end, and it is past the first page.
        unsafe { self.memory.add(PAGE + at).cast::<u64>().read_volatile() }
    }

    fn take(&mut self, into: &mut Vec<(u64, Told)>) {
        // struct perf_event_mmap_page: data_head at 1024, data_tail at 1032. SAFETY: both are in the first page, and
        // the kernel also accesses them as atomic words.
        let (head, tail) = unsafe {
            (
                AtomicU64::from_ptr(self.memory.add(1024).cast()),
                AtomicU64::from_ptr(self.memory.add(1032).cast()),
            )
        };
        // Acquire: the records before the head have been written.
        let end = head.load(Ordering::Acquire);
        while self.taken < end {
            // struct perf_event_header: u32 type, u16 misc, u16 size.
            let header = self.word(self.taken);
            let (kind, bytes) = (header as u32, header >> 48);
            const SAMPLE: u32 = 9;
            const LOST: u32 = 2;
            assert_ne!(kind, LOST, "events were lost");
            if kind == SAMPLE {
                // A record contains the time, the ABI of the registers, and the registers in the
                // order of their numbers.
                let field = |i: u64| self.word(self.taken + 8 * (i + 1));
                into.push((
                    field(0),
                    Told {
                        block: field(4),
                        size: field(3),
                        weighted_bytes: field(2),
                    },
                ));
            }
            self.taken += bytes;
        }
        tail.store(self.taken, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping of new(), without remaining references.
        unsafe { libc::munmap(self.memory.cast(), (PAGES + 1) * PAGE) };
    }
}

/// Returns for each block the number of its allocations minus the number of its releases. Fails if
/// a block was released more often than it was allocated.
pub fn balance(allocations: &[Told], releases: &[Told]) -> BTreeMap<u64, u64> {
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    for told in allocations {
        *live.entry(told.block).or_default() += 1;
    }
    for told in releases {
        let of_block = live.get_mut(&told.block).filter(|count| **count > 0);
        *of_block.unwrap_or_else(|| panic!("{told:x?} is released and was not told")) -= 1;
    }
    live.retain(|_, count| *count > 0);
    live
}
