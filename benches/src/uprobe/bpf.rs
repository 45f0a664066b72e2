//! bpf(2): programs of a few instructions, without a compiler or a library.

use super::event::explain;
use std::{
    fs::File,
    os::fd::{AsRawFd, FromRawFd},
};

/// The leading fields of `union bpf_attr` for `BPF_PROG_LOAD` that we need (linux/bpf.h).
#[repr(C)]
#[derive(Default)]
struct Load {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

const PROG_LOAD: i32 = 5;
/// `BPF_PROG_TYPE_KPROBE`, which is also the type for user probes.
const KPROBE: u32 = 2;
const GET_STACK: i32 = 67;
const USER_STACK: i32 = 1 << 8;

/// Encodes an instruction: 8 bits of operation, 4 of destination, 4 of source, 16 of offset, 32 of
/// immediate value (Documentation/bpf/standardization/instruction-set.rst in the kernel's sources).
const fn instruction(operation: u8, destination: u8, source: u8, immediate: i32) -> u64 {
    operation as u64
        | (destination as u64) << 8
        | (source as u64) << 12
        | (immediate as u32 as u64) << 32
}

const fn set(register: u8, value: i32) -> u64 {
    instruction(0xb7, register, 0, value)
}

const EXIT: u64 = instruction(0x95, 0, 0, 0);
const CALL: u8 = 0x85;
const COPY: u8 = 0xbf;
const ADD: u8 = 0x07;
const FRAME_POINTER: u8 = 10;

/// A loaded program.
pub struct Program(File);

impl Program {
    /// Loads `return 1`. With this result, the kernel counts the hit.
    pub fn returning() -> Result<Program, String> {
        Self::load(&[set(0, 1), EXIT])
    }

    /// Loads a program that takes the user stack and returns 1. The kernel walks the stack by frame
    /// pointers.
    pub fn taking_stacks(frames: u16) -> Result<Program, String> {
        let bytes = i32::from(frames) * 8;
        Self::load(&[
            // bpf_get_stack(context, frame pointer - bytes, bytes, BPF_F_USER_STACK)
            instruction(COPY, 2, FRAME_POINTER, 0),
            instruction(ADD, 2, 0, -bytes),
            set(3, bytes),
            set(4, USER_STACK),
            instruction(CALL, 0, 0, GET_STACK),
            set(0, 1),
            EXIT,
        ])
    }

    fn load(instructions: &[u64]) -> Result<Program, String> {
        let mut log = vec![0u8; 65536];
        let attributes = Load {
            kind: KPROBE,
            instruction_count: instructions.len() as u32,
            instructions: instructions.as_ptr() as u64,
            // bpf_get_stack requires a program under a GPL-compatible licence.
            license: c"Dual MIT/GPL".as_ptr() as u64,
            log_level: 1,
            log_size: log.len() as u32,
            log: log.as_mut_ptr() as u64,
            ..Load::default()
        };
        // SAFETY: the attributes and everything they point to live until the call returns.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                PROG_LOAD,
                &raw const attributes,
                size_of::<Load>(),
            )
        };
        if fd < 0 {
            let why = explain("bpf(BPF_PROG_LOAD)");
            let log = String::from_utf8_lossy(&log);
            return Err(format!("{why} {}", log.trim_end_matches('\0').trim()));
        }
        // SAFETY: a new descriptor that nothing else owns.
        Ok(Program(unsafe { File::from_raw_fd(fd as i32) }))
    }

    pub(super) fn descriptor(&self) -> i32 {
        self.0.as_raw_fd()
    }
}
