//! Name of an allocation site in a finding.

use memhook_report::{StackFrame, frame_name, is_library_plumbing, is_wrapper, short_place};

/// Number of callers that are named next to the allocating function.
const CALLERS: usize = 2;
/// Libraries whose functions allocate for their caller.
const SYSTEM_LIBRARIES: [&str; 3] = ["libc.so", "libstdc++.so", "libc++.so"];

/// Name of a site.
#[derive(Clone, PartialEq, Eq)]
pub struct Site {
    /// The allocating function; empty if the call was not recorded.
    pub name: String,
    /// File and line of the function, or its module.
    place: String,
    callers: Vec<String>,
}

impl Site {
    /// Names the program's own innermost function, and its callers.
    pub fn of_stack(stack: &[StackFrame]) -> Site {
        let is_passing_on = |frame: &StackFrame| {
            let module = frame.module.as_deref().unwrap_or_default();
            let file_name = module.rsplit('/').next().unwrap_or(module);
            let is_of_system = SYSTEM_LIBRARIES.iter().any(|of| file_name.starts_with(of));
            let function = frame.function.as_deref();
            is_of_system
                || function.is_none_or(|name| is_wrapper(name) || is_library_plumbing(name))
        };
        let first = stack.iter().position(|frame| !is_passing_on(frame));
        let frames = &stack[first.unwrap_or(0)..];
        let place = frames.first().map(|frame| match (&frame.file, frame.line) {
            (Some(file), Some(line)) => short_place(&format!("{file}:{line}")),
            _ => frame.module.clone().unwrap_or_default(),
        });
        let mut names = frames.iter().map(frame_name);
        Site {
            name: names.next().unwrap_or_default(),
            place: place.unwrap_or_default(),
            callers: names.take(CALLERS).collect(),
        }
    }

    /// Returns true if the call was recorded.
    pub fn is_known(&self) -> bool {
        !self.name.is_empty()
    }

    /// Returns the name, place and callers of the site, for a sentence.
    pub fn text(&self) -> String {
        if !self.is_known() {
            return "a caller that was not recorded".to_owned();
        }
        let place = match self.place.is_empty() {
            true => String::new(),
            false => format!(" ({})", self.place),
        };
        let callers = self.callers.iter().map(|name| format!(" \u{2190} {name}"));
        format!("{}{place}{}", self.name, callers.collect::<String>())
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
            frame("operator new(unsigned long)", "/lib/libstdc++.so.6", None),
            frame(
                "std::string::_M_construct(unsigned long, char)",
                "/lib/libstdc++.so.6.0.30",
                None,
            ),
            frame(
                "std::__new_allocator<int>::construct<int>()",
                "/usr/bin/shop",
                Some(("new_allocator.h", 137)),
            ),
            frame("add_order", "/usr/bin/shop", Some(("shop.cc", 40))),
            frame("serve", "/usr/bin/shop", Some(("shop.cc", 90))),
            frame("main", "/usr/bin/shop", None),
        ];
        let site = Site::of_stack(&stack);
        assert_eq!(
            site.text(),
            "add_order (shop.cc:40) \u{2190} serve \u{2190} main"
        );
        // Without debug information, there is a module instead of a file and line.
        let site = Site::of_stack(&[frame("pool_get", "haproxy", None)]);
        assert_eq!(site.text(), "pool_get (haproxy)");
        assert!(!Site::of_stack(&[]).is_known());
    }
}
