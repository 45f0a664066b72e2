//! Functions that only pass on the result of an allocator. A leak is attributed to their caller
//! instead.

use crate::evidence::SourceFrame;
use crate::pattern::template_matches;
use memhook_report::{is_library_plumbing, is_wrapper};

/// Libraries with functions that allocate for their caller.
const SYSTEM_LIBRARIES: [&str; 5] = [
    "libc.so",
    "libstdc++.so",
    "libpthread",
    "ld-linux",
    "libm.so",
];

/// Recognizes wrappers: functions with a known name, and functions that match patterns of the user.
#[derive(Clone, Debug, Default)]
pub struct Wrappers {
    patterns: Vec<String>,
}

impl Wrappers {
    /// Creates a list of the known names and of these patterns, which have the syntax of
    /// suppressions.
    pub fn new(patterns: Vec<String>) -> Wrappers {
        Wrappers { patterns }
    }

    /// Returns true if a frame belongs to a wrapper. A frame without a name counts as a wrapper's
    /// only in a system library.
    pub(crate) fn has(&self, frame: &SourceFrame) -> bool {
        let of_system = |module: &str| SYSTEM_LIBRARIES.iter().any(|l| module.starts_with(l));
        let by_name = |function: &String| {
            is_wrapper(function)
                || is_library_plumbing(function)
                || self.patterns.iter().any(|p| template_matches(p, function))
        };
        frame.module_name().is_some_and(of_system) || frame.function.as_ref().is_some_and(by_name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: &str, module: &str) -> SourceFrame {
        SourceFrame {
            function: Some(function.into()),
            module: Some(module.into()),
            ..SourceFrame::default()
        }
    }

    #[test]
    fn wrappers_by_name() {
        let wrappers = Wrappers::new(vec!["^new_node$".into()]);
        for name in [
            "yaml_malloc",
            "cJSON_strdup",
            "png_malloc_base",
            "zcalloc",
            "ztrymalloc_usable_internal",
            "sqlite3Malloc",
            "xmalloc.part.0",
            "operator new(unsigned long)",
            "void* Pool<A, B(*)(int)>::Allocate<int>(unsigned long)",
            "void std::vector<Json::Value, std::allocator<Json::Value> >::_M_realloc_insert<>()",
            "std::__cxx11::basic_string<char>::_M_assign(std::string const&)",
            "__gnu_cxx::new_allocator<int>::allocate(unsigned long, void const*)",
            "new_node",
        ] {
            assert!(wrappers.has(&frame(name, "/opt/app")), "{name}");
        }
        for name in [
            "main",
            "parse(std::vector<int, std::allocator<int> >&)",
            "std::string Json::Value::toStyledString() const",
            "(anonymous namespace)::Reader::read(char const*)",
            "Map<std::string, my::allocator<int> >::operator[](std::string const&)",
            "bool operator< <int>(A<int> const&, A<int> const&)",
            "new_nodes",
            "",
            "<<<(((",
            "a>>>b",
        ] {
            assert!(!wrappers.has(&frame(name, "/opt/app")), "{name}");
        }
        assert!(wrappers.has(&frame("fopen", "/lib/x86_64-linux-gnu/libc.so.6")));
        let nameless = SourceFrame {
            module: Some("/opt/app".into()),
            ..SourceFrame::default()
        };
        assert!(!wrappers.has(&nameless));
    }
}
