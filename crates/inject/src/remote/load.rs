//! Loads a shared object into the target, without needing a file in the target's file system.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::descriptor::open_here;
use crate::{Error, Held, MAX_CALL_DATA, region, shown_name};
use memhook_process::{Mapping, RemoteAddress, inner_tid, living_thread};

/// The target's own `dlopen`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dlopen {
    /// Address in the target.
    pub address: RemoteAddress,
    /// True for glibc's `__libc_dlopen_mode` (before 2.34), which needs one more mode bit.
    pub internal_mode: bool,
}

/// Longest wait for a loader lock that another thread holds.
const LOCK_PATIENCE: Duration = Duration::from_millis(100);
/// Like `LOCK_PATIENCE`, but for when all other threads are stopped. Even on a busy machine, a call that waits for no
/// lock returns within this time.
const STILL_PATIENCE: Duration = Duration::from_millis(5);
/// Time after which the thread is left to complete `dlopen` on its own.
const LOADING_PATIENCE: Duration = Duration::from_secs(5);

/// Maximum length of the loader's message that is read.
const REASON_BYTES: usize = 256;

/// `__RTLD_DLOPEN` of glibc's include/dlfcn.h.
const RTLD_DLOPEN_INTERNAL: u64 = 0x8000_0000;

/// Name of the hook's memory object in /proc/PID/maps.
pub const NAME: &std::ffi::CStr = c"memhook-hook";

/// Loads the shared object with the content `object` by a remote `dlopen` of a memory object. Returns its load bias:
/// the actual address minus the address in the file.
///
/// The `dlopen` is never abandoned; see [`Held::call_to_its_end`]. Call [`Held::ask_for_loader_locks`] first.
///
/// Fails with [`Error::DescriptorLost`] if another thread closes unknown descriptors. In such a process there is no
/// further attempt: the loader reads and closes its file by descriptor number, which may by then refer to one of the
/// target's files.
pub fn load_object(held: &mut Held, dlopen: Dlopen, object: &[u8]) -> Result<u64, Error> {
    let number = region::memfd(held, NAME, region::MemfdFor::Code)?;
    let loaded = fill_and_open(held, dlopen, object, number);
    let closed = held.close_opened();
    let loaded = loaded?;
    closed?;
    Ok(loaded)
}

/// Loads a shared object from a file of the target by a remote `dlopen`. Returns its load bias. `earlier`: number of
/// objects that the target has already loaded from files of this name, which may have been removed.
pub fn load_file(
    held: &mut Held,
    dlopen: Dlopen,
    folder: &str,
    name: &str,
    earlier: usize,
) -> Result<u64, Error> {
    let path = format!("{folder}/{}{name}", "./".repeat(earlier));
    let loaded = open(held, dlopen, path)?;
    loaded.bias(held)
}

fn fill_and_open(
    held: &mut Held,
    dlopen: Dlopen,
    object: &[u8],
    number: u64,
) -> Result<u64, Error> {
    fill(held, object, number)?;
    let [by_thread, by_process] = paths_of(held, number);
    held.check_object(number)?;
    let (loaded, path) = match open(held, dlopen, by_thread.clone()) {
        Err(Error::LoadFailed { .. }) => {
            held.check_object(number)?;
            (open(held, dlopen, by_process.clone())?, by_process)
        }
        loaded => (loaded?, by_thread),
    };
    held.work.earlier_loads += 1;
    shown_name::overwrite(held, loaded.link_map, &path)?;
    loaded.bias(held)
}

/// Returns the paths by which the loader may open the object with this descriptor, in order of preference.
///
/// The name stays in the loader's list until it is overwritten, or forever if we are killed before that. So the first
/// path leads through a thread of the process: a debugger that opens the path finds nothing, because none of its own
/// threads has that id. In a /proc of another pid namespace, the thread has another id, and the path leads nowhere.
/// Only the loader opens the path, because a file system of the target may be slow, and we hold a thread.
fn paths_of(held: &Held, number: u64) -> [String; 2] {
    // The loader identifies objects by name. It would return the object of an earlier attach that was loaded through
    // the same descriptor number.
    let file = format!("{}{number}", "./".repeat(held.work.earlier_loads));
    let (pid, tid) = (held.pid, held.tid);
    let thread = inner_tid(pid, tid).map_or(tid.to_string(), |inner| inner.to_string());
    // An initial thread that has ended no longer has descriptors, but it is the thread through which /proc shows the
    // process.
    let folder = match living_thread(pid) == pid {
        true => "self",
        false => "thread-self",
    };
    [
        format!("/proc/self/task/{thread}/fd/{file}"),
        format!("/proc/{folder}/fd/{file}"),
    ]
}

/// Object that the loader has loaded.
struct Loaded {
    /// `struct link_map` of <link.h>; musl's `struct dso` begins in the same way.
    link_map: u64,
}

impl Loaded {
    /// Returns the object's load bias: the actual address minus the address in the file.
    fn bias(&self, held: &Held) -> Result<u64, Error> {
        held.read_word(RemoteAddress(self.link_map)) // l_addr
    }
}

fn open(held: &mut Held, dlopen: Dlopen, path: String) -> Result<Loaded, Error> {
    let mut bytes = path.clone().into_bytes();
    bytes.push(0);
    if bytes.len() > MAX_CALL_DATA {
        return Err(Error::LoadFailed {
            pid: held.pid,
            path,
            reason: "its path is too long".to_owned(),
        });
    }
    let mut mode = (libc::RTLD_NOW | libc::RTLD_LOCAL) as u64;
    if dlopen.internal_mode {
        mode |= RTLD_DLOPEN_INTERNAL;
    }
    let handle = held.call_to_its_end(dlopen.address, &mut bytes, LOADING_PATIENCE, |at| {
        vec![at.0, mode]
    })?;
    if handle == 0 {
        let reason = reason(held).unwrap_or_else(|| {
            "the object does not fit the target, or /proc is not mounted in its mount namespace"
                .into()
        });
        return Err(Error::LoadFailed {
            pid: held.pid,
            path,
            reason,
        });
    }
    tracing::debug!(
        pid = held.pid,
        path,
        "the loader of the process has loaded an object"
    );
    Ok(Loaded { link_map: handle })
}

impl Held {
    /// Makes the thread take each lock of the loader for a moment.
    ///
    /// `dlopen` takes one of the locks and, while holding it, the other. Each of the functions called here takes one
    /// lock and holds no other. If another thread keeps a lock for longer than 100 ms, or is stopped while it holds the
    /// lock, nothing has changed, and the result is [`Error::CallTimeout`].
    pub fn ask_for_loader_locks(&mut self) -> Result<(), Error> {
        self.prepare_calls()?;
        let scratch = self.scratch()?;
        let patience = match self.others_stand_still() {
            true => STILL_PATIENCE,
            false => LOCK_PATIENCE,
        };
        // dladdr(3) of an address outside all modules; a `Dl_info` has four words.
        let asked = [
            (self.target.functions.dladdr, [0, scratch.data().0]),
            (self.target.functions.iterate, [scratch.found().0, 0]),
        ];
        for (function, arguments) in asked {
            if let Some(function) = function {
                self.call_unless_locked(function, &arguments, patience)?;
            }
        }
        Ok(())
    }
}

/// Writes the object into the memory object with this descriptor.
pub(crate) fn fill(held: &mut Held, object: &[u8], number: u64) -> Result<(), Error> {
    match open_here(held, number) {
        Ok(file) => file.write_all_at(object, 0).map_err(|cause| Error::File {
            path: format!("/proc/{}/fd/{number}", held.pid),
            cause,
        }),
        Err(error @ (Error::DescriptorLost { .. } | Error::WentHome { .. })) => Err(error),
        Err(_) => fill_remotely(held, object, number),
    }
}

/// Returns the loader's message about the failure. The message must be read in any case, because otherwise the
/// program's next dlerror(3) would return it.
fn reason(held: &mut Held) -> Option<String> {
    let text = held.call(held.target.functions.dlerror?, &[]).ok()?;
    let mut bytes = [0u8; REASON_BYTES];
    // An unreadable page may follow the message.
    let read = (1..=REASON_BYTES).rev().step_by(16).find(|&length| {
        let into = &mut bytes[..length];
        text != 0 && held.read(RemoteAddress(text), into).is_ok()
    })?;
    let bytes = bytes[..read].split(|&byte| byte == 0).next()?;
    let text: String = String::from_utf8_lossy(bytes).escape_debug().collect();
    let advice = if text.contains("static TLS") {
        // glibc's manual, "Dynamic Linking Tunables".
        " (its libraries have used up the reserved static TLS: start it with GLIBC_TUNABLES=glibc.rtld.optional_static_tls=4096)"
    } else {
        ""
    };
    (!text.is_empty()).then(|| text + advice)
}

/// Copies the object through memory of the target. Needed if we cannot open its descriptor.
fn fill_remotely(held: &mut Held, object: &[u8], number: u64) -> Result<(), Error> {
    let bytes = object.len() as u64;
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    let map = [0, bytes, protection, flags, u64::MAX, 0];
    let buffer = held.checked_syscall("mmap", libc::SYS_mmap, &map)?;
    let written = held.write(RemoteAddress(buffer), object).and_then(|()| {
        let mut done = 0;
        while done < bytes {
            let rest = [number, buffer + done, bytes - done];
            done += held
                .checked_syscall("write", libc::SYS_write, &rest)?
                .max(1);
        }
        Ok(())
    });
    held.checked_syscall("munmap", libc::SYS_munmap, &[buffer, bytes])?;
    written
}

/// Returns the number of our objects that the target has already loaded.
pub(crate) fn earlier_loads(mappings: &[Mapping]) -> usize {
    let name = format!("/memfd:{}", NAME.to_string_lossy());
    let inodes: BTreeSet<u64> = mappings
        .iter()
        .filter(|m| m.path == name)
        .map(|m| m.file_id.2)
        .collect();
    inodes.len()
}
