//! Name of an allocation site in a finding.

use memhook_report::{StackFrame, frame_name, from_responsible, is_own_code, short_place};

/// Number of callers that are named in addition to the allocating function.
const CALLERS: usize = 2;

/// Name of a site.
#[derive(Clone, PartialEq, Eq)]
pub struct Site {
    /// The allocating function; empty if the call was not recorded.
    pub name: String,
    /// File and line of the function, or its module; empty if the name already includes it.
    place: String,
    callers: Vec<String>,
}

impl Site {
    /// Names the frame that reports name, and its callers.
    pub fn of_stack(stack: &[StackFrame]) -> Site {
        let frames = from_responsible(stack);
        let place = frames.first().map(|frame| match (&frame.file, frame.line) {
            (Some(file), Some(line)) => short_place(&format!("{file}:{line}")),
            _ if frame.function.is_none() => String::new(),
            _ => frame.module.clone().unwrap_or_default(),
        });
        let callers = frames.iter().skip(1).filter(|frame| is_own_code(frame));
        Site {
            name: frames.first().map(frame_name).unwrap_or_default(),
            place: place.unwrap_or_default(),
            callers: callers.take(CALLERS).map(frame_name).collect(),
        }
    }

    /// Returns true if the call was recorded.
    pub fn is_known(&self) -> bool {
        !self.name.is_empty()
    }

    /// Returns the name and the place of the site, for a sentence.
    pub fn text(&self) -> String {
        match (self.is_known(), self.place.is_empty()) {
            (false, _) => "a caller that was not recorded".to_owned(),
            (true, true) => self.name.clone(),
            (true, false) => format!("{} ({})", self.name, self.place),
        }
    }

    /// Returns the name, the place and the callers of the site.
    pub fn with_callers(&self) -> String {
        let callers = self.callers.iter().map(|name| format!(" \u{2190} {name}"));
        self.text() + &callers.collect::<String>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: &str, module: &str, place: Option<(&str, u32)>) -> StackFrame {
        StackFrame {
            address: "0x1".into(),
            module: Some(module.into()),
            offset: None,
            function: Some(function.into()),
            file: place.map(|(file, _)| file.into()),
            line: place.map(|(_, line)| line),
            inlined: false,
        }
    }

    #[test]
    fn the_first_function_of_the_program_is_named_with_its_line() {
        let stack = [
            frame("operator new(unsigned long)", "libstdc++.so.6", None),
            frame(
                "std::string::_M_construct(unsigned long, char)",
                "libstdc++.so.6.0.30",
                None,
            ),
            frame(
                "std::__new_allocator<int>::construct<int>()",
                "shop",
                Some(("new_allocator.h", 137)),
            ),
            frame("add_order", "shop", Some(("shop.cc", 40))),
            frame("serve", "shop", Some(("shop.cc", 90))),
            frame("std::invoke<int>()", "shop", None),
            frame("main", "shop", None),
            frame("__libc_start_call_main", "libc.so.6", None),
            frame("_start", "shop", None),
        ];
        let site = Site::of_stack(&stack);
        assert_eq!(site.text(), "add_order (shop.cc:40)");
        assert_eq!(
            site.with_callers(),
            "add_order (shop.cc:40) \u{2190} serve \u{2190} main"
        );
        assert_eq!(
            Site::of_stack(&stack[6..]).with_callers(),
            "main (shop)",
            "the runtime calls it"
        );
        // Without debug information, the site has a module instead of a file and line.
        let site = Site::of_stack(&[frame("pool_get", "haproxy", None)]);
        assert_eq!(site.text(), "pool_get (haproxy)");
        let mut unnamed = frame("", "haproxy", None);
        (unnamed.function, unnamed.offset) = (None, Some("0x4a10".into()));
        let site = Site::of_stack(&[unnamed]);
        assert_eq!(site.text(), "haproxy+0x4a10");
        assert!(!Site::of_stack(&[]).is_known());
    }
}
