//! Facts about a program's memory on which a verdict is based.

use crate::growth::Growth;
use memhook_report::RunScores;
use memhook_report::claims::Seen;
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// Blocks and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sum {
    /// Number of blocks.
    pub blocks: u64,
    /// Requested bytes.
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
    /// True if the function is inlined into the next frame.
    pub inlined: bool,
    /// True if the function returns the result of an allocator. A leak is then blamed on its caller.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub wrapper: bool,
}

impl SourceFrame {
    /// Returns the module's file name.
    pub fn module_name(&self) -> Option<&str> {
        let path = self.module.as_deref()?;
        Some(path.rsplit('/').next().unwrap_or(path))
    }

    /// Returns the name under which the frame is shown: its function, or else its place in the module.
    pub fn name(&self) -> String {
        match (&self.function, self.module_name()) {
            (Some(function), _) => memhook_report::readable_name(function),
            (None, Some(module)) => format!("{module}+{:#x}", self.svma),
            (None, None) => format!("{:#x}", self.svma),
        }
    }

    /// Returns `file:line`, or the module.
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
    /// Dynamic symbol of the allocating function (`malloc`, `_Znwm`); `None` if the allocation was not traced.
    pub symbol: Option<String>,
    /// Common name of that function (`malloc`, `new`).
    pub kind: String,
    /// Frames, innermost first.
    pub stack: Vec<SourceFrame>,
    /// True if the stack is longer than recorded, but the unwinder could not follow it.
    pub truncated: bool,
    /// The site's heap, if the user has described its allocator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heap: Option<String>,
    /// Live blocks of the site, leaked or not.
    pub live: Sum,
}

impl AllocationSite {
    /// Returns the site's identity in any build: functions and modules, without addresses and
    /// lines.
    pub fn identity(&self) -> Vec<String> {
        self.identity_by(&self.stack)
    }

    /// Returns this identity for some frames only.
    pub(crate) fn identity_by(&self, frames: &[SourceFrame]) -> Vec<String> {
        let names = frames.iter().map(|f| match &f.function {
            Some(function) => function.clone(),
            None => f.module_name().unwrap_or("?").to_owned(),
        });
        std::iter::once(self.kind.clone()).chain(names).collect()
    }

    /// Returns the frames up to the function to blame: wrappers, and the first function that is not
    /// a wrapper.
    pub fn frames_to_blame(&self) -> &[SourceFrame] {
        let blamed = self.stack.iter().position(|frame| !frame.wrapper);
        &self.stack[..blamed.map_or(self.stack.len(), |at| at + 1)]
    }

    /// Returns the key that the sites of one leak share: the kind, and the line to blame. If all frames belong to
    /// wrappers, the key contains all frames.
    pub(crate) fn leak_key(&self) -> (String, Vec<SourceFrame>) {
        let place = |frame: &SourceFrame| SourceFrame {
            // Without a line, two calls in one function cannot be distinguished.
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

    /// Returns the frame to show in the source. Frames of wrappers are skipped. The first choice is the innermost frame
    /// whose source is below `root`, then the innermost with a relative source path (usual in distributions' builds),
    /// then the innermost with a line outside the system's headers.
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

/// Returns true if a source file is below `root`. A relative path refers to the directory where the
/// module was built, so the file is ours only if it exists below `root`.
pub(crate) fn is_below(file: &str, root: &str) -> bool {
    if file.starts_with('/') {
        Path::new(file).starts_with(root)
    } else {
        Path::new(root).join(file).is_file()
    }
}

/// Unreachable blocks, by the site of the blocks that no other leaked block points to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Leak {
    /// Number of the site in [`Evidence::sites`].
    pub site: usize,
    /// Blocks to which no other leaked block points.
    pub direct: Sum,
    /// Blocks that are reachable only from directly leaked blocks, by site.
    pub indirect: Vec<(usize, Sum)>,
    /// Set if the leak was found by its growth, not by a reachability search.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth: Option<Growth>,
}

impl Leak {
    /// Returns direct and indirect blocks together.
    pub fn total(&self) -> Sum {
        let mut total = self.direct;
        for (_, sum) in &self.indirect {
            total.add(*sum);
        }
        total
    }
}

/// Blocks of one site that only pointers into blocks keep reachable. Either the program uses interior pointers, or it
/// has lost the blocks and the pointers are stale. These blocks never fail a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PossibleLeak {
    /// Number of the site in [`Evidence::sites`].
    pub site: usize,
    /// Blocks of the site and their bytes.
    #[serde(flatten)]
    pub blocks: Sum,
}

/// End of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The program is still running.
    #[default]
    Running,
    /// The program exited with this status.
    Exited(i32),
    /// This signal killed the program.
    Signaled(i32),
    /// The process's end was not seen, because the evidence is a recording.
    Recorded,
}

impl Ending {
    /// Returns how the program itself failed; `None` if it did not.
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

/// Returns the names of the signals that end programs (signal(7), x86).
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

/// Kind of the findings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// Unreachable blocks.
    #[default]
    Leaks,
    /// Sites that keep growing.
    Growth,
    /// Live blocks, without a search for unreachable blocks.
    Live,
}

impl Subject {
    /// Returns the noun for one finding.
    pub(crate) fn noun(self) -> &'static str {
        match self {
            Subject::Leaks => "leak",
            Subject::Growth => "growing site",
            Subject::Live => "site",
        }
    }
}

/// All evidence for the verdict.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Evidence {
    /// Command line or name of the program.
    pub program: String,
    /// End of the program.
    pub ending: Ending,
    /// Kind of the findings.
    pub subject: Subject,
    /// Every site with live blocks.
    pub sites: Vec<AllocationSite>,
    /// Unreachable blocks.
    #[serde(skip)]
    pub leaks: Vec<Leak>,
    /// Reachable blocks.
    pub reachable: Sum,
    /// Possibly lost blocks among the reachable ones, by site, largest first. Empty unless the user
    /// asked for them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub possible: Vec<PossibleLeak>,
    /// Described heaps, in the order of their descriptions. All other sums refer to malloc's heap.
    #[serde(skip)]
    pub heaps: Vec<crate::HeapEvidence>,
    /// Maximum bytes that were live at one time.
    pub peak_bytes: u64,
    /// Number of allocations.
    pub allocations: u64,
    /// Scores of the heap, if they are limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scores: Option<RunScores>,
    /// Length of the observation.
    #[serde(skip)]
    pub elapsed: Duration,
    /// True if no events were seen for some of the time, so that neither a leak nor a sum is certain.
    #[serde(skip)]
    pub is_blind: bool,
    /// Events that the trace may have missed; `None` if the process was not traced.
    #[serde(skip)]
    pub seen: Option<Seen>,
    /// Parts that were not seen. If there are any, the verdict "passed" would not be sound.
    pub gaps: Vec<String>,
    /// Further notes.
    pub notes: Vec<String>,
}

impl Evidence {
    /// Returns the name of the program, without its process id and its arguments.
    pub(crate) fn command(&self) -> &str {
        let numbered = self.program.strip_prefix("process ");
        let words = numbered.and_then(|rest| rest.split_once(": "));
        let words = words.map_or(self.program.as_str(), |(_, words)| words);
        words.split(' ').next().unwrap_or_default()
    }

    /// Returns the sum of possibly lost blocks.
    pub fn possibly_lost(&self) -> Sum {
        let mut sum = Sum::default();
        self.possible.iter().for_each(|leak| sum.add(leak.blocks));
        sum
    }

    /// Returns the sum of live blocks.
    pub fn live(&self) -> Sum {
        let mut live = self.reachable;
        for leak in &self.leaks {
            live.add(leak.total());
        }
        live
    }
}
