//! Interface between the sources of backtraces (a running trace, a recording, a profile) and their
//! consumers. Code that builds rows, sites or findings accesses a run only through these traits.

use crate::StackFrame;
use crate::types::named_by_frames;
use memhook_abi::HOOKED_FUNCTIONS;
use memhook_recording::Recording;
use memhook_symbols::{Frame, Symbolizer};

/// A backtrace as it was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backtrace {
    /// Number of the hooked function that was called.
    pub function: u8,
    /// Return addresses (avma), innermost first.
    pub addresses: Vec<u64>,
    /// True if the stack is longer than recorded, but the unwinder could not follow it.
    pub truncated: bool,
}

impl Backtrace {
    /// Returns the common name of the function: `malloc`, `new`, `free`.
    pub fn kind(&self) -> Option<&'static str> {
        let function = HOOKED_FUNCTIONS.get(usize::from(self.function))?;
        Some(function.kind)
    }
}

/// Returns true if a stack that ends with these frames lacks relevant frames: those between the
/// outermost of the `found` calls and the function that calls main, or a thread's entry function.
pub(crate) fn is_cut(found: usize, truncated: bool, depth: u32, last: &[StackFrame]) -> bool {
    may_be_cut(found, truncated, depth) && !ends_at_beginning(last)
}

/// Returns true if a stack counts as cut whenever its outermost function is neither the caller of
/// main nor a thread's entry function.
pub(crate) fn may_be_cut(found: usize, truncated: bool, depth: u32) -> bool {
    found > 0 && (truncated || found >= depth as usize)
}

/// Returns true if the outermost of these frames belongs to the C library's own start-up code,
/// whose callers do not matter.
fn ends_at_beginning(frames: &[StackFrame]) -> bool {
    let [.., outermost] = frames else {
        return false;
    };
    let module = outermost.module.as_deref().unwrap_or_default();
    let of_c_library = ["libc.so", "libc-", "libpthread", "ld-musl"]
        .iter()
        .any(|name| module.starts_with(name));
    match outermost.function.as_deref() {
        // Names that begin with two underscores belong to the C library (C11, 7.1.3), even if it is
        // linked in.
        Some(name) if name == "_start" || name.starts_with("__libc_start_") => true,
        Some("start_thread" | "clone" | "clone3" | "__clone" | "__clone3" | "start") => {
            of_c_library
        }
        // Distributions strip this name from the library.
        None => {
            let caller = frames.iter().rev().nth(1);
            of_c_library && caller.is_some_and(|frame| frame.function.as_deref() == Some("main"))
        }
        Some(_) => false,
    }
}

/// Backtraces by their stack ids.
pub trait Backtraces {
    /// Returns the backtrace with this id.
    fn backtrace(&self, id: u32) -> Option<Backtrace>;

    /// Returns the name of a function that the user has described, by its id.
    fn described(&self, _function: u8) -> Option<String> {
        None
    }

    /// Returns the common name of the function of a backtrace.
    fn kind(&self, backtrace: &Backtrace) -> Option<String> {
        let hooked = backtrace.kind().map(str::to_owned);
        hooked.or_else(|| self.described(backtrace.function))
    }
}

impl Backtraces for Recording {
    fn backtrace(&self, id: u32) -> Option<Backtrace> {
        let stack = self.stacks().get(id)?;
        Some(Backtrace {
            function: stack.function,
            addresses: stack.frames.to_vec(),
            truncated: stack.truncated,
        })
    }
}

/// A run with names for its numbers.
pub(crate) trait NamedRun {
    /// Returns the addresses of a stack, innermost first.
    fn addresses(&self, stack: u32) -> Vec<u64>;
    /// Returns the functions at a return address, inlined functions first; never empty.
    fn frames_at(&self, address: u64) -> Vec<StackFrame>;
    /// Returns the name of a thread; empty if the name is no longer known.
    fn thread_name(&self, tid: u32) -> String;
    /// Returns the function whose call was recorded with the stack, and whether the stack was
    /// truncated.
    fn call(&self, stack: u32) -> (String, bool);
    /// Returns true if the stack lacks its outermost frames.
    fn is_cut(&self, stack: u32) -> bool;
    /// Names a block size of the rows.
    fn size_name(&self, number: u64) -> String {
        format!("{number} bytes")
    }

    /// Returns the type of the blocks allocated with a stack, if the stack reveals it.
    fn type_of(&self, stack: u32) -> Option<String> {
        named_by_frames(&self.stack(stack))
    }

    /// Returns a stack with names, innermost first.
    fn stack(&self, stack: u32) -> Vec<StackFrame> {
        let addresses = self.addresses(stack).into_iter();
        addresses.flat_map(|a| self.frames_at(a)).collect()
    }
}

/// Returns the frames at an address. There is more than one if functions are inlined at the
/// address.
pub fn frames_at(symbols: &Symbolizer, address: u64) -> Vec<StackFrame> {
    let location = symbols.location(address);
    let frame = |frame: &Frame| StackFrame {
        address: format!("{address:#x}"),
        module: location.module.clone(),
        offset: (location.module.as_ref()).map(|_| format!("{:#x}", location.svma)),
        function: frame.function.clone(),
        file: frame.file.clone(),
        line: frame.line,
        inlined: frame.inlined,
    };
    if location.frames.is_empty() {
        return vec![frame(&Frame::default())];
    }
    location.frames.iter().map(frame).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: Option<&str>, module: &str) -> StackFrame {
        StackFrame {
            function: function.map(str::to_owned),
            module: Some(module.into()),
            ..StackFrame::default()
        }
    }

    #[test]
    fn a_stack_down_to_the_call_of_main_lacks_nothing() {
        let main = frame(Some("main"), "shop");
        let ends = [
            (frame(Some("__libc_start_call_main"), "libc.so.6"), false),
            (frame(Some("__libc_start_main"), "shop"), false),
            (frame(Some("_start"), "shop"), false),
            (frame(Some("start_thread"), "libc.so.6"), false),
            (frame(None, "libc.so.6"), false),
            (frame(None, "shop"), true),
            (frame(Some("start_thread"), "shop"), true),
            (frame(Some("qsort"), "libc.so.6"), true),
        ];
        for (end, expected) in ends {
            let frames = [main.clone(), end];
            for truncated in [true, false] {
                assert_eq!(is_cut(2, truncated, 2, &frames), expected, "{frames:?}");
            }
            assert!(!is_cut(2, false, 3, &frames), "{frames:?}");
        }
        let called_by_sort = [frame(Some("compare"), "shop"), frame(None, "libc.so.6")];
        assert!(is_cut(2, true, 2, &called_by_sort));
    }
}
