//! Wrappers: functions that merely pass an allocation through. A report should name their callers
//! instead.

use crate::names::qualified_name;
use crate::stacks::without_template_arguments;
use memhook_foreign::star_glob;

/// Names of wrappers, without arguments. `*` matches any text.
const WRAPPERS: &[&str] = &[
    "malloc",
    "calloc",
    "realloc",
    "operator new*",
    "strdup",
    "strndup",
    "__libc_*alloc*",
    "__gnu_cxx::*allocator*",
    "std::*allocator*",
    "std::*_M_allocate*",
    "std::*_M_create*",
    "std::make_unique*",
    "std::make_shared*",
    "std::__allocate_*",
    "std::__shared_*",
    "zmalloc*",
    "zcalloc*",
    "zrealloc*",
    "ztry*alloc*",
    "zstrdup",
    "xmalloc",
    "xcalloc",
    "xrealloc",
    "xstrdup",
    "xmemdup",
    "ggc_*alloc*",
    "g_malloc*",
    "g_realloc*",
    "g_slice_alloc*",
    "je_*alloc*",
    "tc_malloc*",
    "mi_malloc*",
    "PyMem_*alloc*",
    "PyObject_*alloc*",
    "_PyObject_*alloc*",
    "alloc::alloc::*",
    "__rust_*alloc*",
    "__rdl_*alloc*",
    "std::sys::alloc::*",
];

/// Parts of the unqualified names of wrappers in most programs: `my_malloc`, `png_malloc_base`,
/// `cJSON_strdup`, `pool_alloc`, `Arena::Allocate`.
const NAME_PARTS: [&str; 5] = ["alloc", "strdup", "strndup", "memdup", "asprintf"];

/// Returns true if a function is a wrapper, regardless of its parameters and result.
pub fn is_wrapper(function: &str) -> bool {
    let name = qualified_name(function);
    let last = name.rsplit("::").next().unwrap_or(&name);
    let lower = last.to_ascii_lowercase();
    last.starts_with("operator new")
        || NAME_PARTS.iter().any(|part| lower.contains(part))
        || is_listed(function)
}

fn is_listed(function: &str) -> bool {
    let bare = without_template_arguments(function).replace("<...>", "");
    let bare = bare.strip_prefix("void* ").unwrap_or(&bare);
    let bare = bare.strip_prefix("void ").unwrap_or(bare);
    let ends = bare.match_indices(['(', '[', '@', ' ']).map(|(at, _)| at);
    let names: Vec<&str> = ends.chain([bare.len()]).map(|end| &bare[..end]).collect();
    let is_called = |wrapper: &&str| names.iter().any(|name| star_glob(wrapper, name));
    WRAPPERS.iter().any(is_called)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_and_results_do_not_count() {
        for name in [
            "xcalloc",
            "zmalloc_usable",
            "operator new(unsigned long)",
            "std::make_unique<Session>()",
            "void* std::__allocate_guarded<A<B>>(int)",
            "malloc@plt",
            "sqlite3Malloc",
            "ztrymalloc_usable_internal",
            "my_malloc",
            "alloc_root",
            "Sql_alloc::operator new(unsigned long, st_mem_root*)",
            "void* Pool<A, B(*)(int)>::Allocate<int>(unsigned long)",
            "g_slice_alloc0",
        ] {
            assert!(is_wrapper(name), "{name}");
        }
        for name in [
            "Map<std::string, my::allocator<int> >::operator[](std::string const&)",
            "parse(std::allocator<int>)",
            "std::vector<int, std::allocator<int>>::push_back(int&&)",
            "operator<(A, B)",
            "",
        ] {
            assert!(!is_wrapper(name), "{name}");
        }
    }
}
