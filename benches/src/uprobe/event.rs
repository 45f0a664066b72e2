//! perf_event_open(2) with the event source `uprobe`.

use super::bpf::Program;
use std::{
    ffi::CString,
    fs::File,
    io::{Error, Read},
    os::fd::{AsRawFd, FromRawFd},
};

/// `struct perf_event_attr` up to `PERF_ATTR_SIZE_VER5` (linux/perf_event.h).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    /// Address of the path of the probed file.
    config1: u64,
    /// Offset of the probe in the file.
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clock: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved: u16,
}

const _: () = assert!(size_of::<Attributes>() == 112);

const DISABLED: u64 = 1;
const EXCLUDE_KERNEL_CALLCHAIN: u64 = 1 << 21;
const SAMPLE_CALLCHAIN: u64 = 1 << 5;
const CLOSE_ON_EXEC: u64 = 1 << 3;
// _IO('$', n) of linux/perf_event.h
const ENABLE: u64 = 0x2400;
const DISABLE: u64 = 0x2401;
const SET_BPF: u64 = 0x4004_2408;

/// Location of a probe.
pub struct Place {
    /// Path of the file and offset in it.
    pub file_offset: (String, u64),
    /// True if the probe fires when the function returns instead of when it is called.
    pub at_return: bool,
}

/// One probe on one thread, initially disabled.
pub struct Event(File);

fn source(file: &str) -> Result<String, String> {
    let path = format!("/sys/bus/event_source/devices/uprobe/{file}");
    std::fs::read_to_string(&path)
        .map_err(|e| format!("{path}: {e}; a kernel with CONFIG_UPROBE_EVENTS is needed"))
}

/// Explains the failure of a system call, and suggests a remedy.
pub(super) fn explain(call: &str) -> String {
    let error = Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            format!("{call}: {error}; run it as root, or with CAP_PERFMON and CAP_BPF")
        }
        _ => format!("{call}: {error}"),
    }
}

impl Event {
    /// Opens a probe. With `frames` it records call chains of at most this number of frames.
    pub fn open(tid: i32, place: Place, frames: Option<u16>) -> Result<Event, String> {
        let kind = source("type")?.trim().parse().unwrap_or(0);
        // "config:0" names the bit that makes it a return probe.
        let return_bit = source("format/retprobe")?;
        let return_bit = return_bit.trim().trim_start_matches("config:");
        let return_bit: u32 = return_bit.parse().unwrap_or(0);
        let (path, offset) = place.file_offset;
        let path = CString::new(path).map_err(|e| e.to_string())?;
        let attributes = Attributes {
            kind,
            size: size_of::<Attributes>() as u32,
            config: u64::from(place.at_return) << return_bit,
            sample_period: u64::from(frames.is_some()),
            sample_type: if frames.is_some() {
                SAMPLE_CALLCHAIN
            } else {
                0
            },
            flags: DISABLED | EXCLUDE_KERNEL_CALLCHAIN,
            config1: path.as_ptr() as u64,
            config2: offset,
            // The reader polls, so no wake-up is needed. (The kernel reads the number as signed. 0
            // would mean half of the ring.)
            wakeup_events: i32::MAX as u32,
            sample_max_stack: frames.unwrap_or(0),
            ..Attributes::default()
        };
        // SAFETY: the attributes and the path they point to live until the call returns.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                tid,
                -1,
                -1,
                CLOSE_ON_EXEC,
            )
        };
        if fd < 0 {
            return Err(explain("perf_event_open"));
        }
        // SAFETY: a new descriptor that nothing else owns.
        Ok(Event(unsafe { File::from_raw_fd(fd as i32) }))
    }

    fn control(&self, request: u64, argument: i32, name: &str) -> Result<(), String> {
        // SAFETY: these requests take a plain integer.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), request, argument) };
        if result < 0 {
            return Err(explain(name));
        }
        Ok(())
    }

    /// Makes the kernel run a program at every hit.
    pub fn run(&self, program: &Program) -> Result<(), String> {
        self.control(SET_BPF, program.descriptor(), "PERF_EVENT_IOC_SET_BPF")
    }

    /// Enables the probe.
    pub fn enable(&self) -> Result<(), String> {
        self.control(ENABLE, 0, "PERF_EVENT_IOC_ENABLE")
    }

    /// Disables the probe.
    pub fn disable(&self) -> Result<(), String> {
        self.control(DISABLE, 0, "PERF_EVENT_IOC_DISABLE")
    }

    /// Returns the number of hits so far. With a program, the kernel counts only the hits for which
    /// the program returns a nonzero value.
    pub fn count(&self) -> Result<u64, String> {
        let mut bytes = [0; 8];
        let mut file = &self.0;
        file.read_exact(&mut bytes).map_err(|e| e.to_string())?;
        Ok(u64::from_ne_bytes(bytes))
    }

    pub(super) fn descriptor(&self) -> i32 {
        self.0.as_raw_fd()
    }
}
