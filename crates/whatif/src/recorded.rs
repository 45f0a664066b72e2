//! Extracts the data that a replay needs from a recording.

use crate::Error;
use crate::operations::{Asked, Encoder, Operation, Plan, Sums};
use crate::threads::Lives;
use memhook_abi::{Event, HOOKED_FUNCTIONS, flags};
use memhook_ledger::{Ledger, Moves};
use memhook_recording::{RESIDENT_NOTE, Recording, ResidentSample, Visitor, resident_of};
use rustc_hash::{FxHashMap, FxHashSet};

/// Number of consecutive empty passes after which a ledger no longer holds back any event. Further
/// empty passes change nothing.
const MOST_EMPTY_PASSES: u64 = 32;
/// One in this many releases may be missing, because some libraries make some of their calls
/// without a slot.
const MOST_UNSEEN: u64 = 20;

/// Fails if the recording does not contain every call in order.
pub(crate) fn check(recording: &Recording) -> Result<(), Error> {
    let unfit = |why| Err(Error::Unfit(why));
    let meta = recording.meta();
    if recording.is_summary() {
        return unfit("it holds sums of intervals, not each call");
    }
    let of_memory = meta.notes.iter().find(|(name, _)| name == "memory");
    if let Some((_, kind)) = of_memory {
        return unfit(match kind.as_str() {
            "mappings" => "it is a recording of mappings, not of the calls of an allocator",
            _ => "it is a recording of the program's own allocator, which no other one can replace",
        });
    }
    if recording.sample_bytes().is_some() {
        return unfit("it holds samples of the allocations, not all of them");
    }
    let filters = flags::LIVE_FILTER | flags::SIZE_FILTER;
    if meta.flags & filters != 0 {
        return unfit("a filter kept some allocations out of it");
    }
    if recording.part() > 0 {
        return unfit("it is a later part, and the earlier calls are in another file");
    }
    if !recording.gaps().is_empty() {
        return unfit(
            "the process went on untraced for a time, and its calls in that time are missing",
        );
    }
    let losses = recording.losses();
    if losses.events() > 0 {
        return unfit("some of its calls were lost");
    }
    if losses.unwatched_libraries > 0 {
        return unfit("calls by libraries that it opened may be missing");
    }
    let loader = |path: &str| {
        let name = path.rsplit('/').next().unwrap_or(path);
        name.starts_with("ld-linux") && name != "ld-linux-x86-64.so.2"
    };
    if recording.modules().iter().any(|m| loader(&m.path)) {
        return unfit("it is from a process of another architecture");
    }
    Ok(())
}

/// Fails if the calls of the recording are inconsistent as a whole.
pub(crate) fn check_sums(sums: &Sums) -> Result<(), Error> {
    if sums.allocations == 0 {
        return Err(Error::Unfit("it has no allocations"));
    }
    if sums.releases <= sums.unseen_releases {
        return Err(Error::Unfit("it has no releases"));
    }
    if sums.unseen_releases > sums.releases / MOST_UNSEEN {
        return Err(Error::Unfit("many of its releases are missing"));
    }
    Ok(())
}

/// Returns the memory of the recorded process over time.
pub(crate) fn resident(recording: &Recording) -> Vec<ResidentSample> {
    let notes = &recording.meta().notes;
    let note = notes.iter().find(|(name, _)| name == RESIDENT_NOTE);
    note.map_or(Vec::new(), |(_, text)| resident_of(text))
}

/// Returns the library whose allocator the recorded process used, as part of the library's file
/// name; `None` for the C library.
pub(crate) fn allocator(recording: &Recording, known: &[&'static str]) -> Option<&'static str> {
    let modules = recording.modules();
    let is_there = |name: &str| {
        let of = |path: &str| path.rsplit('/').next().unwrap_or("").starts_with(name);
        modules.iter().any(|module| of(&module.path))
    };
    known.iter().copied().find(|name| is_there(name))
}

/// Allocating functions by the ids of their stacks, so that the replay calls similar functions.
struct Functions {
    asked: FxHashMap<u32, Asked>,
    reallocs: FxHashSet<u32>,
}

impl Functions {
    fn of(recording: &Recording) -> Functions {
        let mut found = Functions {
            asked: FxHashMap::default(),
            reallocs: FxHashSet::default(),
        };
        let stacks = recording.stacks();
        for id in stacks.ids() {
            let function = stacks.get(id).map(|stack| usize::from(stack.function));
            let Some(function) = function.and_then(|id| HOOKED_FUNCTIONS.get(id)) else {
                continue;
            };
            let is = |part: &str| function.kind.contains(part);
            if is("realloc") {
                found.reallocs.insert(id);
            } else if is("calloc") {
                found.asked.insert(id, Asked::Zeroed);
            } else if is("align") || is("valloc") || function.name.contains("align_val_t") {
                found.asked.insert(id, Asked::Aligned);
            }
        }
        found
    }
}

type Observed<W> = Moves<Encoder<W>>;

/// Passes the events of a recording to a ledger, which puts them in order.
struct Feed<W: FnMut(Operation)> {
    ledger: Ledger<Observed<W>>,
    threads: Owners,
}

/// Owners of the rings. A ring is passed to another thread only after its owner has ended.
#[derive(Default)]
struct Owners {
    /// Thread numbers in the ledger, which numbers threads in the order of their first rings.
    indices: FxHashMap<u32, u16>,
    of_rings: FxHashMap<usize, u32>,
    ended: FxHashSet<u16>,
}

impl Owners {
    fn enter(&mut self, ring: usize, tid: u32) {
        let next = u16::try_from(self.indices.len() + 1).unwrap_or(0);
        self.indices.entry(tid).or_insert(next);
        let before = self.of_rings.insert(ring, tid);
        let before = before.filter(|before| *before != tid);
        self.ended
            .extend(before.and_then(|before| self.indices.get(&before)));
    }
}

impl<W: FnMut(Operation)> Visitor for Feed<W> {
    fn begin_ring(&mut self, ring: usize, tid: u32) {
        self.ledger.begin_ring(ring, tid);
        self.threads.enter(ring, tid);
    }

    fn event(&mut self, event: Event, size: u64, time_ns: u64) {
        self.ledger.event(event, size, time_ns);
    }

    fn end_pass(&mut self, now_ns: u64, passes: u64) {
        for _ in 0..passes.min(MOST_EMPTY_PASSES) {
            self.ledger.end_pass(now_ns);
        }
    }
}

/// Returns the sums of a recording, and the lives of its threads.
pub(crate) fn survey(recording: &Recording) -> Result<(Sums, Lives), Error> {
    // The second pass knows how many threads are alive at the same time.
    let (_, lives) = pass(recording, Plan::default(), |_| {})?;
    let plan = Plan {
        lives: lives.clone(),
        ..Plan::default()
    };
    let (sums, _) = pass(recording, plan, |_| {})?;
    Ok((sums, lives))
}

/// Passes on the calls of a recording. Calls on the same block are always in order. Within a pass
/// of the recorder, calls of several threads come thread by thread.
pub(crate) fn feed(
    recording: &Recording,
    plan: Plan,
    write: impl FnMut(Operation),
) -> Result<(), Error> {
    pass(recording, plan, write).map(|_| ())
}

fn pass(
    recording: &Recording,
    plan: Plan,
    write: impl FnMut(Operation),
) -> Result<(Sums, Lives), Error> {
    let functions = Functions::of(recording);
    let encoder = Encoder::new(write, functions.asked, plan);
    let reallocs = functions.reallocs;
    let moves = Moves::new(encoder, move |stack| reallocs.contains(&stack));
    let mut feed = Feed {
        ledger: Ledger::observed(recording.ledger_options(), moves),
        threads: Owners::default(),
    };
    recording.visit(&mut feed)?;
    feed.ledger.finish();
    let unseen_releases = feed.ledger.totals().unhooked_releases;
    let mut moves = feed.ledger.into_observer();
    moves.finish();
    let mut encoder = moves.into_blocks();
    encoder.finish();
    let owners = feed.threads;
    let main = owners.indices.get(&recording.meta().pid);
    let main = main.copied().unwrap_or_default();
    let lives = Lives::new(main, encoder.calls(), |index| owners.ended.contains(&index));
    let sums = Sums {
        unseen_releases,
        ..encoder.sums
    };
    Ok((sums, lives))
}
