//! Names of the frames of call stacks.

use memhook_abi::HOOKED_FUNCTIONS;
use memhook_attach::Session;
use memhook_process::TargetRoot;
use memhook_report::{frames_at, one_spelling, type_of_stack};
use memhook_symbols::{Constructors, ModuleFile, Symbolizer};
use std::time::Duration;

/// Time limit for looking up names in the files of the process.
const PATIENCE: Duration = Duration::from_secs(60);

/// A frame of a call stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frame {
    /// Return address in the process.
    pub address: u64,
    /// File name of the module.
    pub module: Option<String>,
    /// Demangled function.
    pub function: Option<String>,
    /// Source file.
    pub file: Option<String>,
    /// Line number.
    pub line: Option<u32>,
    /// True if it was inlined into the next frame.
    pub is_inlined: bool,
}

/// A call stack with names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backtrace {
    /// Function that was called: `malloc`, `new`, `realloc`.
    pub called: Option<String>,
    /// Frames, innermost first.
    pub frames: Vec<Frame>,
    /// True if the stack continues, but could not be followed.
    pub is_cut: bool,
    /// C++ class of the blocks that this call stack allocates, as far as containers, allocators and constructors reveal
    /// it.
    pub class: Option<String>,
}

/// Finds names.
pub(crate) struct Names {
    symbols: Symbolizer,
    /// Access to the files, even after the process has ended.
    _root: TargetRoot,
}

impl Names {
    pub fn of(session: &Session) -> Names {
        let root = session.root().clone();
        Names {
            symbols: Symbolizer::new(root.search_order()),
            _root: root,
        }
    }

    fn look_up(&mut self, addresses: &[u64], modules: Vec<ModuleFile>) {
        self.symbols.set_modules(modules);
        self.symbols.request(addresses.iter().copied());
        self.symbols.is_ready(PATIENCE);
    }

    pub fn frames(&mut self, addresses: &[u64], modules: Vec<ModuleFile>) -> Vec<Frame> {
        self.look_up(addresses, modules);
        let frames = addresses.iter().flat_map(|&address| {
            let frames = frames_at(&self.symbols, address).into_iter();
            frames.map(move |frame| Frame {
                address,
                module: frame.module,
                function: frame.function,
                file: frame.file,
                line: frame.line,
                is_inlined: frame.inlined,
            })
        });
        frames.collect()
    }

    pub fn backtrace(
        &mut self,
        function: u8,
        addresses: &[u64],
        is_cut: bool,
        modules: Vec<ModuleFile>,
    ) -> Backtrace {
        let frames = self.frames(addresses, modules);
        let named = addresses
            .iter()
            .flat_map(|&at| frames_at(&self.symbols, at));
        let by_frames = type_of_stack(&named.collect::<Vec<_>>());
        let constructors = Constructors::new(&self.symbols);
        let class = by_frames.or_else(|| constructors.class(*addresses.first()?).map(one_spelling));
        let called = HOOKED_FUNCTIONS.get(usize::from(function));
        Backtrace {
            called: called.map(|function| function.kind.to_owned()),
            frames,
            is_cut,
            class,
        }
    }
}
