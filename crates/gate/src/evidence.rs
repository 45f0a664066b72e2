//! What is known about a program's memory when it is judged.

use crate::growth::Growth;
use memhook_report::RunScores;
use memhook_report::claims::Seen;
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// Blocks and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sum {
    /// Blocks.
    pub blocks: u64,
    /// Bytes that were asked for.
    pub bytes: u64,
}

impl Sum {
    /// Adds blocks.
    pub fn add(&mut self, more: Sum) {
        self.blocks += more.blocks;
        self.bytes += more.bytes;
    }

    /// Adds one block.
    pub fn add_block(&mut self, bytes: u64) {
        self.add(Sum { blocks: 1, bytes });
    }
}

/// One frame of a call stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct SourceFrame {
    /// Demangled function.
    pub function: Option<String>,
    /// Source file.
    pub file: Option<String>,
    /// Line.
    pub line: Option<u32>,
    /// Path of the module.
    pub module: Option<String>,
    /// Address in the module's file (svma).
    pub svma: u64,
    /// Inlined into the next frame.
    pub inlined: bool,
    /// Its function passes on what an allocator returns: a leak is its caller's.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub wrapper: bool,
}

impl SourceFrame {
    /// The module's file name.
    pub fn module_name(&self) -> Option<&str> {
        let path = self.module.as_deref()?;
        Some(path.rsplit('/').next().unwrap_or(path))
    }

    /// What people call it: its function, else its place in the module.
    pub fn name(&self) -> String {
        match (&self.function, self.module_name()) {
            (Some(function), _) => memhook_report::readable_name(function),
            (None, Some(module)) => format!("{module}+{:#x}", self.svma),
            (None, None) => format!("{:#x}", self.svma),
        }
    }

    /// `file:line`, or the module.
    pub fn place(&self) -> String {
        match (&self.file, self.line, self.module_name()) {
            (Some(file), Some(line), _) => format!("{file}:{line}"),
            (Some(file), None, _) => file.clone(),
            (None, _, Some(module)) if self.function.is_some() => format!("({module})"),
            _ => String::new(),
        }
    }
}

/// An allocation site: blocks that were allocated by one call stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AllocationSite {
    /// Dynamic symbol of the allocating function (`malloc`, `_Znwm`); `None`: the allocation was not
    /// traced.
    pub symbol: Option<String>,
    /// What people call that function (`malloc`, `new`).
    pub kind: String,
    /// Innermost first.
    pub stack: Vec<SourceFrame>,
    /// The stack goes on, but could not be followed.
    pub truncated: bool,
    /// The heap, if it is that of an allocator that the user has described.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heap: Option<String>,
    /// What of it lives, leaked or not.
    pub live: Sum,
}

impl AllocationSite {
    /// What makes it the same site in another build: functions and modules, no addresses and no lines.
    pub fn identity(&self) -> Vec<String> {
        self.identity_by(&self.stack)
    }

    /// The same by some frames only.
    pub(crate) fn identity_by(&self, frames: &[SourceFrame]) -> Vec<String> {
        let names = frames.iter().map(|f| match &f.function {
            Some(function) => function.clone(),
            None => f.module_name().unwrap_or("?").to_owned(),
        });
        std::iter::once(self.kind.clone()).chain(names).collect()
    }

    /// The frames up to the function that is to blame: wrappers, and the first function that is not one.
    pub fn frames_to_blame(&self) -> &[SourceFrame] {
        let blamed = self.stack.iter().position(|frame| !frame.wrapper);
        &self.stack[..blamed.map_or(self.stack.len(), |at| at + 1)]
    }

    /// What sites of one leak have in common: the kind, and the line that is to blame. Where all frames are
    /// wrappers', all of them.
    pub(crate) fn leak_key(&self) -> (String, Vec<SourceFrame>) {
        let place = |frame: &SourceFrame| SourceFrame {
            // Where there is no line, the function is all that is the same at each of its calls.
            svma: if frame.function.is_some() {
                0
            } else {
                frame.svma
            },
            ..frame.clone()
        };
        let frames = match self.frames_to_blame() {
            [.., blamed] if !blamed.wrapper => std::slice::from_ref(blamed),
            wrappers => wrappers,
        };
        (self.kind.clone(), frames.iter().map(place).collect())
    }

    /// The frame to show in the source: of those that are no wrapper's the innermost whose source is below `root`,
    /// else the innermost whose source is given relatively (as distributions build), else the innermost with a line
    /// outside the system's headers.
    pub fn culprit(&self, root: &str) -> Option<&SourceFrame> {
        let (wrappers, others): (Vec<_>, Vec<_>) = self.stack.iter().partition(|f| f.wrapper);
        culprit_of(&others, root).or_else(|| culprit_of(&wrappers, root))
    }
}

fn culprit_of<'a>(frames: &[&'a SourceFrame], root: &str) -> Option<&'a SourceFrame> {
    let with_line = || {
        let with_line = |f: &&SourceFrame| f.file.is_some() && f.line.is_some();
        frames.iter().copied().filter(with_line)
    };
    let file = |f: &SourceFrame| f.file.clone().unwrap_or_default();
    let is_below = |f: &&SourceFrame| is_below(&file(f), root);
    let is_relative = |f: &&SourceFrame| {
        let file = file(f);
        !file.starts_with("./malloc/") && !file.starts_with('/')
    };
    let in_system = |f: &&SourceFrame| file(f).starts_with("/usr/");
    with_line()
        .find(is_below)
        .or_else(|| with_line().find(is_relative))
        .or_else(|| with_line().find(|f| !in_system(f)))
}

/// Whether a source file is below `root`. One that is named relatively belongs to whoever built the module; it is
/// ours only if it is there.
pub(crate) fn is_below(file: &str, root: &str) -> bool {
    if file.starts_with('/') {
        Path::new(file).starts_with(root)
    } else {
        Path::new(root).join(file).is_file()
    }
}

/// Blocks that nothing reaches, by the site of those that no other leaked block points to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Leak {
    /// Number of the site in [`Evidence::sites`].
    pub site: usize,
    /// Blocks to which no other leaked block points.
    pub direct: Sum,
    /// What is reachable only from them, by site.
    pub indirect: Vec<(usize, Sum)>,
    /// Set when it was found by its growth, not by reachability.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth: Option<Growth>,
}

impl Leak {
    /// Direct and indirect together.
    pub fn total(&self) -> Sum {
        let mut total = self.direct;
        for (_, sum) in &self.indirect {
            total.add(*sum);
        }
        total
    }
}

/// Blocks of one site that only pointers into blocks keep reachable: either the program has such pointers, or it has
/// lost the blocks and the pointers are left over. They never fail a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PossibleLeak {
    /// Number of the site in [`Evidence::sites`].
    pub site: usize,
    /// How much it is.
    #[serde(flatten)]
    pub blocks: Sum,
}

/// How the program came to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It runs on.
    #[default]
    Running,
    /// With this exit status.
    Exited(i32),
    /// By this signal.
    Signaled(i32),
    /// It was not seen: this is a recording.
    Recorded,
}

impl Ending {
    /// How the program failed by itself; `None`: it did not.
    pub(crate) fn failure(&self) -> Option<String> {
        match self {
            Ending::Exited(0) | Ending::Running | Ending::Recorded => None,
            Ending::Exited(status) => Some(format!("failed with exit status {status}")),
            Ending::Signaled(signal) => Some(match signal_name(*signal) {
                Some(name) => format!("was ended by {name}"),
                None => format!("was ended by signal {signal}"),
            }),
        }
    }
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ending::Running => f.write_str("still running"),
            Ending::Recorded => f.write_str("as recorded"),
            Ending::Exited(status) => write!(f, "ended with exit status {status}"),
            Ending::Signaled(signal) => match signal_name(*signal) {
                Some(name) => write!(f, "was ended by {name} before it could clean up"),
                None => write!(f, "was ended by signal {signal} before it could clean up"),
            },
        }
    }
}

/// Names of the signals that end programs (signal(7), x86).
fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        _ => return None,
    })
}

/// What the findings are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// Blocks that nothing reaches.
    #[default]
    Leaks,
    /// Sites that keep growing.
    Growth,
    /// Live blocks; whether something reaches them was not looked at.
    Live,
}

impl Subject {
    /// One finding, as a noun.
    pub(crate) fn noun(self) -> &'static str {
        match self {
            Subject::Leaks => "leak",
            Subject::Growth => "growing site",
            Subject::Live => "site",
        }
    }
}

/// All that the verdict is made from.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Evidence {
    /// What ran: a command line, or a name.
    pub program: String,
    /// How it ended.
    pub ending: Ending,
    /// What the findings are.
    pub subject: Subject,
    /// Every site with live blocks.
    pub sites: Vec<AllocationSite>,
    /// What nothing reaches.
    #[serde(skip)]
    pub leaks: Vec<Leak>,
    /// What something still reaches.
    pub reachable: Sum,
    /// What of it is possibly lost, the largest first; empty unless that was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub possible: Vec<PossibleLeak>,
    /// The heaps of described allocators, in their order. All other sums are those of malloc's heap.
    #[serde(skip)]
    pub heaps: Vec<crate::HeapEvidence>,
    /// Most bytes live at a time.
    pub peak_bytes: u64,
    /// Allocations made.
    pub allocations: u64,
    /// How well the heap is used, if that is limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scores: Option<RunScores>,
    /// How long it was looked at.
    #[serde(skip)]
    pub elapsed: Duration,
    /// There were times in which nothing was seen, so neither a leak nor a sum is certain.
    #[serde(skip)]
    pub is_blind: bool,
    /// What the trace may have missed; `None` if the process was not traced.
    #[serde(skip)]
    pub seen: Option<Seen>,
    /// What was not seen, so that to pass would not be sound.
    pub gaps: Vec<String>,
    /// What else to know.
    pub notes: Vec<String>,
}

impl Evidence {
    /// Name of the program, without the number of its process and its arguments.
    pub(crate) fn command(&self) -> &str {
        let numbered = self.program.strip_prefix("process ");
        let words = numbered.and_then(|rest| rest.split_once(": "));
        let words = words.map_or(self.program.as_str(), |(_, words)| words);
        words.split(' ').next().unwrap_or_default()
    }

    /// All that is possibly lost.
    pub fn possibly_lost(&self) -> Sum {
        let mut sum = Sum::default();
        self.possible.iter().for_each(|leak| sum.add(leak.blocks));
        sum
    }

    /// Everything that lives.
    pub fn live(&self) -> Sum {
        let mut live = self.reachable;
        for leak in &self.leaks {
            live.add(leak.total());
        }
        live
    }
}
