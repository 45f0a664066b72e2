//! Labels of frames in exported formats. A function has the same name in all formats.

use crate::names::{is_plumbing, readable};
use crate::{Profile, ProfileFrame, StackFrame};
use memhook_foreign::visible;
use memhook_symbols::PYTHON;
use std::borrow::Cow;
use std::collections::HashMap;

/// Name for the missing frames of a site without a call stack.
pub(crate) const NO_STACK: &str = "(no call stack)";

/// The names of a profile's frames. Equal names have equal numbers.
pub(crate) struct Labels {
    of_frame: Vec<u32>,
    texts: Vec<String>,
    addresses: Vec<u64>,
}

impl Labels {
    /// Labels of all frames.
    pub fn new(profile: &Profile) -> Labels {
        Labels::by(profile, |frame| name(&frame.frame))
    }

    /// Labels all frames with their source locations or modules, as Valgrind does. Calls of one
    /// function from different lines then differ.
    pub fn with_places(profile: &Profile) -> Labels {
        Labels::by(profile, |frame| {
            let module = frame.module.and_then(|m| profile.modules.get(m as usize));
            let place = match (&frame.frame.file, frame.frame.line) {
                (Some(file), line) => {
                    let file = file.rsplit('/').next().unwrap_or(file);
                    let line = line.map_or(String::new(), |line| format!(":{line}"));
                    format!(" ({file}{line})")
                }
                (None, _) => module.map_or(String::new(), |m| format!(" (in {})", m.path)),
            };
            one_line(name(&frame.frame) + &place)
        })
    }

    fn by(profile: &Profile, name: impl Fn(&ProfileFrame) -> String) -> Labels {
        let mut numbers = HashMap::from([(NO_STACK.to_owned(), 0)]);
        let mut texts = vec![NO_STACK.to_owned()];
        let mut addresses = vec![0];
        let number = |frame: &ProfileFrame| {
            *numbers.entry(name(frame)).or_insert_with_key(|text| {
                texts.push(text.clone());
                addresses.push(frame.address);
                texts.len() as u32 - 1
            })
        };
        let of_frame = profile.frames.iter().map(number).collect();
        Labels {
            of_frame,
            texts,
            addresses,
        }
    }

    /// Returns the address of the first frame with this name.
    pub fn address(&self, number: u32) -> u64 {
        self.addresses[number as usize]
    }

    /// Returns a stack as label numbers, innermost first, never empty.
    pub fn stack(&self, profile: &Profile, stack: u32) -> Vec<u32> {
        let frames = profile.stacks.get(stack as usize);
        let numbers = frames.into_iter().flatten();
        let numbers: Vec<u32> = numbers
            .filter_map(|&frame| self.of_frame.get(frame as usize).copied())
            .collect();
        if numbers.is_empty() { vec![0] } else { numbers }
    }

    /// Returns the name with this number.
    pub fn text(&self, number: u32) -> &str {
        &self.texts[number as usize]
    }
}

/// Returns the function, the module and offset, or the address, as one line without control
/// characters.
pub fn name(frame: &StackFrame) -> String {
    let name = match (&frame.function, &frame.module, &frame.offset) {
        (Some(function), _, _) => readable(function),
        (None, Some(module), Some(offset)) => format!("{module}+{offset}"),
        _ => frame.address.clone(),
    };
    one_line(name)
}

/// Returns the name of a site: its innermost Python function, or else its innermost function
/// outside the C++ library, then its callers.
pub fn site_name(stack: &[StackFrame]) -> String {
    let is_own = |frame: &StackFrame| frame.function.as_deref().is_none_or(|f| !is_plumbing(f));
    let is_python = |frame: &StackFrame| frame.module.as_deref() == Some(PYTHON);
    // The site is the line of Python code, whichever C function it calls.
    let python = stack.iter().position(is_python);
    let first = python.or(stack.iter().position(is_own)).unwrap_or(0);
    let names: Vec<String> = stack[first.min(stack.len())..].iter().map(name).collect();
    if names.is_empty() {
        NO_STACK.to_owned()
    } else {
        names.join(" \u{2190} ")
    }
}

/// Makes control characters visible, because no format can represent them.
pub(crate) fn one_line(text: String) -> String {
    match visible(&text) {
        Cow::Owned(shown) => shown,
        Cow::Borrowed(_) => text,
    }
}
