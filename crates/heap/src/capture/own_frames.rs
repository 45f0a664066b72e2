//! Depth of the frames on a thread's stack.
//!
//! Memory below the stack pointer is dead only if the thread is on its own stack, in the order of
//! calls. The stack of a coroutine or of signal handlers may be a local array. Then the frames of
//! other coroutines, or the frames that the signal has interrupted, are below it and still in use.
//! So frames are followed from the innermost frame to the frame with which the thread began.

use crate::arch::native::{self, ByNumber};
use crate::snapshot::Snapshot;
use memhook_process::ModuleImage;
use memhook_unwind::reference::{Start, Unwinder};

use super::modules::program_headers;

/// Maximum number of frames that are followed.
const MOST_FRAMES: usize = 20_000;
/// The C library's start function calls the function of a thread and then ends the thread with the
/// system call exit(2). This is the maximum number of bytes of code between the two.
const REACH_BYTES: usize = 32;

/// Finds the lowest frame of each thread. `images` has the modules whose files are available.
pub fn follow(snapshot: &mut Snapshot, images: &[ModuleImage]) {
    // The kernel uses the same bits in all threads.
    let signature = snapshot.meta.threads.iter().map(|thread| thread.signature);
    let signature = signature.fold(0, std::ops::BitOr::bitor);
    let mut modules = Modules {
        images,
        unwinder: Unwinder::with_signature(signature),
        added: vec![false; images.len()],
    };
    for index in 0..snapshot.meta.threads.len() {
        let registers = snapshot.meta.threads[index].registers;
        let lowest = registers.and_then(|registers| modules.lowest(snapshot, registers));
        snapshot.meta.threads[index].lowest_frame = lowest;
    }
}

struct Modules<'a> {
    images: &'a [ModuleImage],
    unwinder: Unwinder,
    /// True for each module that has been added to the unwinder. Modules are added on demand,
    /// because many have no frame on any stack, and some have large tables.
    added: Vec<bool>,
}

impl Modules<'_> {
    fn lowest(&mut self, snapshot: &Snapshot, registers: ByNumber) -> Option<u64> {
        let read = |address| snapshot.word(address);
        let start = loop {
            match self
                .unwinder
                .to_the_start(registers.map(Some), &read, MOST_FRAMES)
            {
                Ok(start) => break start,
                Err(lost_at) => self.add(lost_at?)?,
            }
        };
        self.begins_a_thread(&start).then_some(start.lowest)
    }

    /// Adds the module with this code. Returns `None` if there is no such module, or if adding the
    /// module did not help.
    fn add(&mut self, pc: u64) -> Option<()> {
        let index = self.images.iter().position(|image| image.contains(pc))?;
        if std::mem::replace(&mut self.added[index], true) {
            return None;
        }
        let image = &self.images[index];
        self.unwinder
            .add_module(image.base, image.start..image.end, &image.bytes);
        Some(())
    }

    /// Returns true if the outermost function is a function in which threads begin. It is either
    /// the entry point of the program, or the code of the C library that calls a thread's function
    /// and then ends the thread. Coroutines also have an outermost function, so its existence alone
    /// proves nothing.
    fn begins_a_thread(&self, start: &Start) -> bool {
        let Some(image) = self.images.iter().find(|image| image.contains(start.pc)) else {
            return false;
        };
        let svma = |address: u64| address.wrapping_sub(image.base);
        if entry_point(&image.bytes).is_some_and(|entry| {
            (svma(start.function.start)..svma(start.function.end)).contains(&entry)
        }) {
            return true;
        }
        let code = code_at(&image.bytes, svma(start.pc)).unwrap_or_default();
        native::ends_a_thread(code)
    }
}

/// Returns `e_entry` (elf(5)).
fn entry_point(elf: &[u8]) -> Option<u64> {
    let field = elf.get(24..32)?;
    Some(u64::from_le_bytes(field.try_into().ok()?)).filter(|&entry| entry != 0)
}

/// Returns the code at an address of a module.
fn code_at(elf: &[u8], svma: u64) -> Option<&[u8]> {
    let headers = program_headers(elf)?;
    let segment = headers.iter().find(|header| {
        header.is_executable()
            && (header.p_vaddr..header.p_vaddr.saturating_add(header.p_filesz)).contains(&svma)
    })?;
    let within = svma - segment.p_vaddr;
    let at = usize::try_from(segment.p_offset.checked_add(within)?).ok()?;
    let bytes = usize::try_from(segment.p_filesz - within)
        .ok()?
        .min(REACH_BYTES);
    elf.get(at..at.checked_add(bytes)?)
}
