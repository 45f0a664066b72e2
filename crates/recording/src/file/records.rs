//! The small records: the run, modules, threads, losses, clock.

use crate::Error;
use crate::file::varint::{Cursor, put, put_bytes};
use memhook_stream::Losses;

/// Facts about the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Pid of the target in the recorder's namespace.
    pub pid: u32,
    /// Time of the attach, nanoseconds since 1970 (UTC).
    pub started_unix_ns: u64,
    /// Command line of the target: the contents of `/proc/PID/cmdline`, but with spaces as
    /// separators.
    pub command: String,
    /// Host name.
    pub host: String,
    /// Name and version of the recorder.
    pub recorder: String,
    /// Clock mode, one of [`memhook_abi::clock_mode`].
    pub clock_mode: u32,
    /// Bits of [`memhook_abi::flags`].
    pub flags: u32,
    /// Mean bytes between samples; 0 if every allocation is recorded.
    pub sample_bytes: u64,
    /// Further facts for later readers, as name and value.
    pub notes: Vec<(String, String)>,
}

impl Meta {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put(out, u64::from(self.pid));
        put(out, self.started_unix_ns);
        for text in [&self.command, &self.host, &self.recorder] {
            put_bytes(out, text.as_bytes());
        }
        put(out, u64::from(self.clock_mode));
        put(out, u64::from(self.flags));
        put(out, self.sample_bytes);
        put(out, self.notes.len() as u64);
        for (name, value) in &self.notes {
            put_bytes(out, name.as_bytes());
            put_bytes(out, value.as_bytes());
        }
    }

    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Self, Error> {
        let mut meta = Meta {
            pid: cursor.u32()?,
            started_unix_ns: cursor.varint()?,
            command: cursor.text()?,
            host: cursor.text()?,
            recorder: cursor.text()?,
            clock_mode: cursor.u32()?,
            flags: cursor.u32()?,
            sample_bytes: cursor.varint()?,
            notes: Vec::new(),
        };
        for _ in 0..cursor.count(2)? {
            meta.notes.push((cursor.text()?, cursor.text()?));
        }
        Ok(meta)
    }
}

/// A module and the time during which it was mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// Path in the target's file system.
    pub path: String,
    /// Build-id note, as bytes; empty if the file has none.
    pub build_id: Vec<u8>,
    /// Load bias: avma - svma.
    pub base: u64,
    /// First byte (avma).
    pub start: u64,
    /// Address after the last byte (avma).
    pub end: u64,
    /// Time at which the module was first seen, in nanoseconds since the attach; 0 for modules
    /// loaded before the attach.
    pub loaded_ns: u64,
    /// Time at which the module was found to be unloaded; `None` if it stayed loaded.
    pub unloaded_ns: Option<u64>,
}

/// Change of the modules: a module was loaded, or the one at a base address was unloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModuleChange {
    Loaded(Module),
    Unloaded { base: u64, time_ns: u64 },
}

impl ModuleChange {
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            ModuleChange::Loaded(module) => {
                put(out, 1);
                put_bytes(out, module.path.as_bytes());
                put_bytes(out, &module.build_id);
                for value in [module.base, module.start, module.end, module.loaded_ns] {
                    put(out, value);
                }
            }
            ModuleChange::Unloaded { base, time_ns } => {
                put(out, 2);
                put(out, *base);
                put(out, *time_ns);
            }
        }
    }

    pub fn read(cursor: &mut Cursor<'_>) -> Result<Self, Error> {
        Ok(match cursor.varint()? {
            1 => ModuleChange::Loaded(Module {
                path: cursor.text()?,
                build_id: cursor.bytes()?.to_vec(),
                base: cursor.varint()?,
                start: cursor.varint()?,
                end: cursor.varint()?,
                loaded_ns: cursor.varint()?,
                unloaded_ns: None,
            }),
            2 => ModuleChange::Unloaded {
                base: cursor.varint()?,
                time_ns: cursor.varint()?,
            },
            _ => return Err(Error::damaged("an unknown change of modules")),
        })
    }
}

/// Applies changes in the order in which they were recorded.
pub(crate) fn apply_change(modules: &mut Vec<Module>, change: ModuleChange) {
    match change {
        ModuleChange::Loaded(module) => modules.push(module),
        ModuleChange::Unloaded { base, time_ns } => {
            let there = modules
                .iter_mut()
                .rev()
                .find(|m| m.base == base && m.unloaded_ns.is_none());
            if let Some(module) = there {
                module.unloaded_ns = Some(time_ns);
            }
        }
    }
}

/// Name of a frame outside all modules, such as a function of an interpreter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedFrame {
    /// Address that represents the frame in backtraces.
    pub address: u64,
    /// The function.
    pub function: String,
    /// The file.
    pub file: String,
    /// The line, if known.
    pub line: Option<u32>,
}

impl NamedFrame {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put(out, self.address);
        put_bytes(out, self.function.as_bytes());
        put_bytes(out, self.file.as_bytes());
        put(out, u64::from(self.line.unwrap_or(0)));
    }

    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Self, Error> {
        Ok(NamedFrame {
            address: cursor.varint()?,
            function: cursor.text()?,
            file: cursor.text()?,
            line: Some(cursor.u32()?).filter(|&line| line != 0),
        })
    }
}

/// Name of a thread from one moment on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadName {
    /// Thread id, in the target's pid namespace.
    pub tid: u32,
    /// Name.
    pub name: String,
    /// Time at which the name was read, in nanoseconds since the attach.
    pub time_ns: u64,
}

impl ThreadName {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put(out, u64::from(self.tid));
        put_bytes(out, self.name.as_bytes());
        put(out, self.time_ns);
    }

    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Self, Error> {
        Ok(ThreadName {
            tid: cursor.u32()?,
            name: cursor.text()?,
            time_ns: cursor.varint()?,
        })
    }
}

/// The recorder's clock and the time of day, read together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ClockPoint {
    /// Nanoseconds since the attach.
    pub time_ns: u64,
    /// Nanoseconds since 1970 (UTC).
    pub unix_ns: u64,
    /// Value of the time stamp counter; 0 if it was not read.
    pub tsc: u64,
    /// Nanoseconds per tick of the time-stamp counter, according to the calibration so far; 0 if
    /// unknown.
    pub tsc_scale: f64,
}

impl ClockPoint {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        for value in [
            self.time_ns,
            self.unix_ns,
            self.tsc,
            self.tsc_scale.to_bits(),
        ] {
            put(out, value);
        }
    }

    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Self, Error> {
        Ok(ClockPoint {
            time_ns: cursor.varint()?,
            unix_ns: cursor.varint()?,
            tsc: cursor.varint()?,
            tsc_scale: f64::from_bits(cursor.varint()?),
        })
    }
}

pub(crate) fn write_losses(losses: &Losses, out: &mut Vec<u8>) {
    for value in [
        losses.dropped,
        losses.reentrant,
        losses.truncated,
        losses.ringless,
        losses.unwound,
        losses.memo_checked,
        losses.memo_wrong,
        losses.stacks_dropped,
        losses.unwatched_libraries,
    ] {
        put(out, value);
    }
}

pub(crate) fn read_losses(cursor: &mut Cursor<'_>) -> Result<Losses, Error> {
    Ok(Losses {
        dropped: cursor.varint()?,
        reentrant: cursor.varint()?,
        truncated: cursor.varint()?,
        ringless: cursor.varint()?,
        unwound: cursor.varint()?,
        memo_checked: cursor.varint()?,
        memo_wrong: cursor.varint()?,
        stacks_dropped: cursor.varint()?,
        unwatched_libraries: if cursor.is_empty() {
            0
        } else {
            cursor.varint()?
        },
    })
}

/// Reason why a recording ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordingEnd {
    /// The recorder finished normally.
    Finished,
    /// The recording continues in the next part.
    NextPart,
    /// The file reached the maximum size.
    SizeLimit,
    /// The disk had less than the required space left.
    LowDisk {
        /// Bytes that were free.
        free_bytes: u64,
    },
    /// The disk was too slow: the number of bytes waiting to be written exceeded the limit.
    TooSlow,
    /// The operating system reported a write error.
    Failed(String),
}

impl std::fmt::Display for RecordingEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RecordingEnd::Finished => f.write_str("finished"),
            RecordingEnd::NextPart => f.write_str("continued in the next part"),
            RecordingEnd::SizeLimit => f.write_str("the file reached its largest allowed size"),
            RecordingEnd::LowDisk { free_bytes } => {
                write!(f, "the disk is nearly full ({free_bytes} bytes free)")
            }
            RecordingEnd::TooSlow => f.write_str("the disk could not keep up"),
            RecordingEnd::Failed(why) => write!(f, "writing failed: {why}"),
        }
    }
}

impl RecordingEnd {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            RecordingEnd::Finished => put(out, 0),
            RecordingEnd::NextPart => put(out, 1),
            RecordingEnd::SizeLimit => put(out, 2),
            RecordingEnd::LowDisk { free_bytes } => {
                put(out, 3);
                put(out, *free_bytes);
            }
            RecordingEnd::TooSlow => put(out, 4),
            RecordingEnd::Failed(why) => {
                put(out, 5);
                put_bytes(out, why.as_bytes());
            }
        }
    }

    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Self, Error> {
        Ok(match cursor.varint()? {
            0 => RecordingEnd::Finished,
            1 => RecordingEnd::NextPart,
            2 => RecordingEnd::SizeLimit,
            3 => RecordingEnd::LowDisk {
                free_bytes: cursor.varint()?,
            },
            4 => RecordingEnd::TooSlow,
            5 => RecordingEnd::Failed(cursor.text()?),
            _ => return Err(Error::damaged("an unknown end")),
        })
    }
}
