//! Places at which a thread may be made to call the loader, or another function that takes locks.
//!
//! A list of code that takes locks would never be complete. So a place is safe only if everything on the thread's stack
//! provably holds no lock. The backtrace must reach the start of the stack with which the thread was created. No frame
//! may be in the C library, the loader, the unwinder or an allocator, with two exceptions:
//!
//! - the innermost frames, if the program has called a system call wrapper of [`WAITING`];
//! - the outermost frames, from which the C library has called main or the function of the thread.
//!
//! Functions of the C library without a symbol are identified by the ranges of its call frame information: a frame is
//! in a listed function if its range begins at the start of that function.
//!
//! The loader calls the program's own `malloc` if there is one. A thread is inside such an allocator if a frame is in
//! one of its functions, or in a function that one of these jumps to. If this cannot be determined, no place is safe.

use memhook_abi::{HOOKED_FUNCTIONS, Role};
use memhook_probe::JumpingCode;
use memhook_process::{
    ElfView, ModuleImage, ModulePart, STARTING, WAITING, WAITING_ELSEWHERE, code_places,
    module_part,
};
use memhook_unwind::{Frame, Sections, TableModule, code_ranges, walk_frames};
use object::{Object, ObjectSection};
use std::ops::Range;

/// Maximum number of frames in a backtrace; a thread with a deeper stack is at no safe place.
const DEPTH: usize = 1024;

/// Instance of glibc in the process. Addresses are avma.
struct Glibc {
    range: Range<u64>,
    /// Ranges of its code, sorted.
    pieces: Vec<Range<u64>>,
    /// Start addresses of the ranges in which a thread may wait, sorted.
    waiting: Vec<u64>,
    /// Start address of `__libc_start_main`.
    start: u64,
}

/// Allocator that is part of the executable.
enum OwnAllocator {
    None,
    /// Ranges of its functions (avma).
    At(Vec<Range<u64>>),
    Unknown,
}

/// The safe places of one process.
pub struct SafePlaces {
    glibcs: Vec<Glibc>,
    locking: Vec<Range<u64>>,
    own: OwnAllocator,
    has_musl: bool,
}

impl SafePlaces {
    /// Finds the safe places of a process with these modules.
    pub fn among(modules: &[ModuleImage]) -> SafePlaces {
        let of = |part| modules.iter().filter(move |m| module_part(m) == part);
        let main = modules.iter().find(|m| m.is_main);
        let has_own = |m: &&ModuleImage| m.facts.exported("malloc").is_some();
        SafePlaces {
            glibcs: of(ModulePart::Glibc).filter_map(Glibc::of).collect(),
            locking: of(ModulePart::Locking).map(|m| m.start..m.end).collect(),
            own: main.filter(has_own).map_or(OwnAllocator::None, |m| {
                own_allocator(m).map_or(OwnAllocator::Unknown, OwnAllocator::At)
            }),
            has_musl: of(ModulePart::Musl).next().is_some(),
        }
    }

    /// Returns the reason if no place can be proved safe.
    pub fn never(&self) -> Option<&'static str> {
        match self.own {
            OwnAllocator::Unknown => {
                Some("its executable has an allocator whose functions are unknown")
            }
            _ => None,
        }
    }

    /// Returns `Err` with the reason if a thread that is stopped at (pc, sp, rbp) is not at a safe place.
    pub fn check(
        &self,
        modules: &[TableModule],
        start: (u64, u64, u64),
        read: &dyn Fn(u64) -> Option<u64>,
    ) -> Result<(), String> {
        if let Some(why) = self.never() {
            return Err(format!("may hold any lock: {why}"));
        }
        let (frames, is_complete) = walk_frames(modules, start, read, DEPTH);
        if self.has_musl {
            // We call no function of musl itself, and musl's stacks do not mark where they begin.
            return self.check_allocators(&frames);
        }
        if !is_complete {
            let lost = frames.last().map_or(start.0, |frame| frame.pc);
            return Err(format!(
                "may hold any lock: its call stack is lost at {lost:#x}"
            ));
        }
        if frames.windows(2).any(|pair| pair[1].sp <= pair[0].sp) {
            return Err(format!("is on a signal stack at {:#x}", start.1));
        }
        let outer = self.outer(&frames).ok_or_else(|| {
            format!(
                "runs on a custom stack at {:#x} (its outermost frame is not the C library's)",
                start.1
            )
        })?;
        let mut rest = &frames[..frames.len() - outer];
        // A signal can interrupt code anywhere outside the C library, so the interrupted frames and the frames of the
        // handler are judged separately. The frame through which the handler returns separates them.
        while let Some(interrupted) = rest.iter().skip(1).position(|frame| frame.is_exact) {
            if let OwnAllocator::At(_) = self.own {
                return Err("is handling a signal that may have interrupted the allocator".into());
            }
            self.check_part(&rest[..interrupted])?;
            rest = &rest[interrupted + 1..];
        }
        self.check_part(rest)
    }

    /// Checks the frames without the outermost ones.
    fn check_part(&self, frames: &[Frame]) -> Result<(), String> {
        let inner = frames
            .iter()
            .position(|frame| self.glibc(frame.lookup()).is_none())
            .ok_or("runs code of the C library that the program did not call")?;
        if let Some(wrapper) = inner.checked_sub(1).map(|outermost| &frames[outermost]) {
            let at = wrapper.lookup();
            if !self.glibc(at).is_some_and(|glibc| glibc.waits_in(at)) {
                return Err(format!(
                    "is in a function of the C library that may hold a lock, at {:#x}",
                    wrapper.pc
                ));
            }
        } else if let OwnAllocator::At(_) = self.own {
            return Err(format!(
                "runs, perhaps inside the executable's allocator, at {:#x}",
                frames[0].pc
            ));
        }
        let callers = &frames[inner..];
        if let Some(frame) = callers.iter().find(|f| self.glibc(f.lookup()).is_some()) {
            return Err(format!("is called from the C library at {:#x}", frame.pc));
        }
        self.check_allocators(frames)
    }

    fn check_allocators(&self, frames: &[Frame]) -> Result<(), String> {
        let own = match &self.own {
            OwnAllocator::At(functions) => &functions[..],
            _ => &[],
        };
        let is_inside = |frame: &&Frame| {
            let mut all = self.locking.iter().chain(own);
            all.any(|range| range.contains(&frame.lookup()))
        };
        match frames.iter().find(is_inside) {
            Some(frame) => Err(format!(
                "is inside the loader, the unwinder or an allocator at {:#x}",
                frame.pc
            )),
            None => Ok(()),
        }
    }

    /// Returns how many of the outermost frames belong to the C library's start of the stack.
    fn outer(&self, frames: &[Frame]) -> Option<usize> {
        let [.., before, last] = frames else {
            return None;
        };
        let glibc = |frame: &Frame| self.glibc(frame.lookup());
        if let Some(of_last) = glibc(last) {
            // clone(3) or a similar function has called start_thread. A function started by makecontext(3) returns to
            // the first instruction of another function.
            let is_called = of_last.begin(last.lookup())? != last.pc;
            return (is_called && glibc(before).is_some()).then_some(2);
        }
        // The program's `_start` has called __libc_start_main. Since glibc 2.34, __libc_start_main calls another
        // function.
        let of_before = glibc(before)?;
        if of_before.begin(before.lookup())? != of_before.start {
            return None;
        }
        let inner = frames.len().checked_sub(3).map(|at| &frames[at]);
        Some(2 + usize::from(inner.is_some_and(|frame| glibc(frame).is_some())))
    }

    fn glibc(&self, address: u64) -> Option<&Glibc> {
        self.glibcs.iter().find(|g| g.range.contains(&address))
    }
}

impl Glibc {
    fn of(module: &ModuleImage) -> Option<Glibc> {
        let elf = ElfView::parse(&module.bytes).ok()?;
        let pieces = pieces(module)?;
        let exported = elf.exported_of(WAITING.iter().chain(STARTING).copied());
        let svma = |name: &&str| exported.get(*name).map(|function| function.svma);
        let mut waiting: Vec<u64> = WAITING.iter().filter_map(svma).collect();
        let code = Code::of(module)?;
        for entry in WAITING_ELSEWHERE.iter().filter_map(svma) {
            let reached = code.jumping(&pieces).reached([entry]);
            waiting.extend(reached.into_iter().flatten().map(|range| range.start));
        }
        let avma = |svma: u64| module.base.wrapping_add(svma);
        let mut waiting: Vec<u64> = waiting.into_iter().map(avma).collect();
        waiting.sort_unstable();
        Some(Glibc {
            range: module.start..module.end,
            pieces: pieces.iter().map(|r| avma(r.start)..avma(r.end)).collect(),
            waiting,
            start: svma(&STARTING[0]).map_or(0, avma),
        })
    }

    /// Returns the start of the code range that contains an address.
    fn begin(&self, address: u64) -> Option<u64> {
        let behind = self.pieces.partition_point(|range| range.start <= address);
        let piece = self.pieces[..behind].last()?;
        piece.contains(&address).then_some(piece.start)
    }

    fn waits_in(&self, address: u64) -> bool {
        self.begin(address)
            .is_some_and(|begin| self.waiting.binary_search(&begin).is_ok())
    }
}

/// Returns the ranges of a module's code (svma), sorted.
fn pieces(module: &ModuleImage) -> Option<Vec<Range<u64>>> {
    let sections = Sections::of(&module.bytes).ok()?;
    let pieces = code_ranges(&sections).into_iter();
    Some(pieces.map(|piece| piece.range).collect())
}

/// Reads code at addresses (svma) of a module's file.
type ReadCode<'a> = Box<dyn Fn(&Range<u64>) -> Option<Vec<u8>> + 'a>;

/// Code of a module's file.
struct Code<'a> {
    leading_away: Vec<Range<u64>>,
    bytes: ReadCode<'a>,
}

impl<'a> Code<'a> {
    fn of(module: &'a ModuleImage) -> Option<Code<'a>> {
        let segments = code_places(&module.bytes);
        let file = object::File::parse(&module.bytes[..]).ok()?;
        let is_plt = |name: object::read::Result<&str>| name.is_ok_and(|n| n.starts_with(".plt"));
        let leading_away = file
            .sections()
            .filter(|section| is_plt(section.name()))
            .map(|section| section.address()..section.address().saturating_add(section.size()))
            .collect();
        let bytes = move |range: &Range<u64>| {
            let is_in = |(segment, _): &&(Range<u64>, u64)| {
                segment.start <= range.start && range.end <= segment.end
            };
            let (segment, offset) = segments.iter().find(is_in)?;
            let at = usize::try_from(offset + (range.start - segment.start)).ok()?;
            let length = usize::try_from(range.end - range.start).ok()?;
            let bytes = module.bytes.at(at, length)?;
            (bytes.len() == length).then(|| bytes.into_owned())
        };
        Some(Code {
            leading_away,
            bytes: Box::new(bytes),
        })
    }

    fn jumping<'s>(&'s self, pieces: &'s [Range<u64>]) -> JumpingCode<'s> {
        JumpingCode {
            functions: pieces,
            leading_away: &self.leading_away,
            bytes: &*self.bytes,
        }
    }
}

/// Returns the functions (avma) of the allocator that an executable exports; `None` if they cannot be determined.
fn own_allocator(module: &ModuleImage) -> Option<Vec<Range<u64>>> {
    let pieces = pieces(module)?;
    let allocates = HOOKED_FUNCTIONS
        .iter()
        .filter(|f| matches!(f.role, Role::Allocates | Role::Releases | Role::Reallocates));
    let entries: Vec<u64> = allocates
        .filter_map(|f| Some(module.facts.exported(f.name)?.svma))
        .collect();
    let reached = Code::of(module)?.jumping(&pieces).reached(entries)?;
    let avma = |svma: u64| module.base.wrapping_add(svma);
    Some(reached.iter().map(|r| avma(r.start)..avma(r.end)).collect())
}
