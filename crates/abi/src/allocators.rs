//! Functions of allocators other than the C library's, by their shape.
//!
//! An allocator that is linked into a program prefixes its names, such as `je_` or `mi_`. A program that bundles the
//! allocator adds another prefix (`duckdb_je_`). The rest of a name follows a pattern, which determines the parameters.
//! Each shape is one function of [`HOOKED_FUNCTIONS`].

use crate::functions::HOOKED_FUNCTIONS;
use std::collections::HashMap;
use std::sync::LazyLock;

/// An allocator that is recognized by the names of its functions.
#[derive(Debug)]
pub struct Allocator {
    /// Name in reports.
    pub name: &'static str,
    /// Prefix of its names when it is linked into a program.
    pub prefix: &'static str,
    /// A function that no other allocator exports.
    pub mark: &'static str,
    /// Prefix of its messages, which identifies it without symbols; may be empty.
    pub message: &'static str,
    /// Maps the name of one of its functions, without the prefix, to the hooked function with the same shape. Names of
    /// C functions are not mapped.
    shape: fn(&str) -> Option<&'static str>,
    /// Returns the names (without the prefix) for which `shape` may return a function.
    names: fn() -> Vec<String>,
}

const fn a(
    name: &'static str,
    prefix: &'static str,
    mark: &'static str,
    message: &'static str,
) -> Allocator {
    Allocator {
        name,
        prefix,
        mark,
        message,
        shape: |_| None,
        names: Vec::new,
    }
}

macro_rules! shaped {
    ($allocator:expr, $shapes:expr) => {
        Allocator {
            shape: |name| listed($shapes, name),
            names: || $shapes.iter().map(|(name, _)| (*name).to_owned()).collect(),
            ..$allocator
        }
    };
}

/// Allocators other than those of C libraries.
pub static ALLOCATORS: &[Allocator] = &[
    a("jemalloc", "je_", "mallocx", "<jemalloc>: "),
    // The name that Rust's tikv-jemallocator links.
    a("jemalloc", "_rjem_", "_rjem_mallocx", "<jemalloc>: "),
    shaped!(
        a("tcmalloc", "tc_", "tc_malloc", "tcmalloc: large alloc"),
        GPERFTOOLS
    ),
    // Google's own allocator (github.com/google/tcmalloc). It is not the tcmalloc of gperftools. Its plain names are
    // aliases of the names here (tcmalloc/libc_override_gcc_and_weak.h).
    shaped!(
        a(
            "google-tcmalloc",
            "TCMallocInternal",
            "TCMallocInternalMalloc",
            ""
        ),
        GOOGLES
    ),
    Allocator {
        shape: mimalloc,
        names: mimallocs_names,
        ..a("mimalloc", "mi_", "mi_zalloc", "mimalloc: ")
    },
    a("scudo", "scudo_", "scudo_malloc", "Scudo ERROR: "),
    shaped!(a("rpmalloc", "rp", "rpmalloc", ""), RPMALLOCS),
    shaped!(a("snmalloc", "sn_", "sn_malloc", ""), SNMALLOCS),
    // oneTBB (oneapi/tbb/scalable_allocator.h).
    shaped!(a("tbbmalloc", "scalable_", "scalable_malloc", ""), TBBS),
];

/// Name without a prefix, and the hooked function with its shape.
type Shapes = &'static [(&'static str, &'static str)];

fn listed(shapes: Shapes, name: &str) -> Option<&'static str> {
    let found = shapes.iter().find(|(listed, _)| *listed == name);
    found.map(|(_, function)| *function)
}

/// gperftools/tcmalloc.h.
const GPERFTOOLS: Shapes = &[
    ("new_nothrow", "_ZnwmRKSt9nothrow_t"),
    ("newarray_nothrow", "_ZnamRKSt9nothrow_t"),
    ("new_aligned", "_ZnwmSt11align_val_t"),
    ("newarray_aligned", "_ZnamSt11align_val_t"),
    ("new_aligned_nothrow", "_ZnwmSt11align_val_tRKSt9nothrow_t"),
    (
        "newarray_aligned_nothrow",
        "_ZnamSt11align_val_tRKSt9nothrow_t",
    ),
    ("delete_nothrow", "_ZdlPvRKSt9nothrow_t"),
    ("deletearray_nothrow", "_ZdaPvRKSt9nothrow_t"),
    ("delete_sized", "_ZdlPvm"),
    ("deletearray_sized", "_ZdaPvm"),
    ("delete_aligned", "_ZdlPvSt11align_val_t"),
    ("deletearray_aligned", "_ZdaPvSt11align_val_t"),
    ("delete_sized_aligned", "_ZdlPvmSt11align_val_t"),
    ("deletearray_sized_aligned", "_ZdaPvmSt11align_val_t"),
];

/// tcmalloc/tcmalloc.h.
const GOOGLES: Shapes = &[
    ("Malloc", "malloc"),
    ("Free", "free"),
    ("FreeSized", "free_sized"),
    ("FreeAlignedSized", "free_aligned_sized"),
    ("Sdallocx", "sdallocx"),
    ("Calloc", "calloc"),
    ("Realloc", "realloc"),
    ("ReallocArray", "reallocarray"),
    ("Memalign", "memalign"),
    ("AlignedAlloc", "aligned_alloc"),
    ("PosixMemalign", "posix_memalign"),
    ("Valloc", "valloc"),
    ("Pvalloc", "pvalloc"),
    ("Cfree", "cfree"),
    ("New", "_Znwm"),
    ("NewArray", "_Znam"),
    ("NewNothrow", "_ZnwmRKSt9nothrow_t"),
    ("NewArrayNothrow", "_ZnamRKSt9nothrow_t"),
    ("NewAligned", "_ZnwmSt11align_val_t"),
    ("NewArrayAligned", "_ZnamSt11align_val_t"),
    ("NewAlignedNothrow", "_ZnwmSt11align_val_tRKSt9nothrow_t"),
    (
        "NewArrayAlignedNothrow",
        "_ZnamSt11align_val_tRKSt9nothrow_t",
    ),
    ("Delete", "_ZdlPv"),
    ("DeleteArray", "_ZdaPv"),
    ("DeleteSized", "_ZdlPvm"),
    ("DeleteArraySized", "_ZdaPvm"),
    ("DeleteNothrow", "_ZdlPvRKSt9nothrow_t"),
    ("DeleteArrayNothrow", "_ZdaPvRKSt9nothrow_t"),
    ("DeleteAligned", "_ZdlPvSt11align_val_t"),
    ("DeleteArrayAligned", "_ZdaPvSt11align_val_t"),
    ("DeleteSizedAligned", "_ZdlPvmSt11align_val_t"),
    ("DeleteArraySizedAligned", "_ZdaPvmSt11align_val_t"),
];

/// rpmalloc/rpmalloc.h: the alignment comes before the size.
const RPMALLOCS: Shapes = &[
    ("zalloc", "mi_zalloc"),
    ("aligned_zalloc", "mi_heap_malloc"),
    ("aligned_calloc", "mi_heap_calloc"),
    ("aligned_realloc", "rpaligned_realloc"),
];

/// snmalloc/src/snmalloc/override/rust.cc: the alignment comes before the size.
const SNMALLOCS: Shapes = &[
    ("rust_alloc", "mi_memalign"),
    ("rust_alloc_zeroed", "mi_memalign"),
    ("rust_dealloc", "free_aligned_sized"),
    ("rust_realloc", "sn_rust_realloc"),
];

const TBBS: Shapes = &[
    ("aligned_malloc", "mi_malloc_aligned"),
    ("aligned_realloc", "mi_realloc"),
    ("aligned_free", "free"),
];

/// Prefixes in mimalloc.h of functions with and without a heap.
const HEAPS: [&str; 3] = ["heap_", "theap_", ""];
/// Suffixes in mimalloc.h: an alignment and an offset, an alignment, the size of a small block, and none.
const ENDINGS: [&str; 4] = ["_aligned_at", "_aligned", "_small", ""];
/// Functions that exist in all these forms.
const WITH_FORMS: [&str; 15] = [
    "malloc",
    "umalloc",
    "zalloc",
    "uzalloc",
    "calloc",
    "ucalloc",
    "mallocn",
    "realloc",
    "urealloc",
    "reallocf",
    "rezalloc",
    "reallocn",
    "recalloc",
    "reallocarray",
    "expand",
];
/// Functions that have no such variants (mimalloc.h, "Extended functionality" and mimalloc-override.h).
const WITHOUT_FORMS: Shapes = &[
    ("free", "free"),
    ("cfree", "free"),
    ("ufree", "free"),
    ("free_small", "free"),
    ("free_size", "free_sized"),
    ("free_aligned", "free_sized"),
    ("free_size_aligned", "free_aligned_sized"),
    ("memalign", "mi_memalign"),
    ("aligned_alloc", "mi_memalign"),
    ("posix_memalign", "mi_posix_memalign"),
    ("valloc", "mi_malloc"),
    ("pvalloc", "mi_malloc"),
    ("_expand", "mi_realloc"),
    ("aligned_recalloc", "mi_recalloc"),
    ("aligned_offset_recalloc", "mi_recalloc"),
    ("new", "_Znwm"),
    ("new_nothrow", "_ZnwmRKSt9nothrow_t"),
    ("new_aligned", "_ZnwmSt11align_val_t"),
    ("new_aligned_nothrow", "_ZnwmSt11align_val_tRKSt9nothrow_t"),
    ("new_n", "mi_calloc"),
    ("new_realloc", "mi_realloc"),
    ("new_reallocn", "mi_recalloc"),
    ("heap_alloc_new", "mi_heap_malloc"),
    ("heap_alloc_new_n", "mi_heap_calloc"),
];

fn mimalloc(name: &str) -> Option<&'static str> {
    if let Some(function) = listed(WITHOUT_FORMS, name) {
        return Some(function);
    }
    let (heap, name) = HEAPS
        .iter()
        .find_map(|h| Some((*h, name.strip_prefix(h)?)))?;
    let (ending, base) = ENDINGS
        .iter()
        .find_map(|e| Some((*e, name.strip_suffix(e)?)))?;
    let of_heap = !heap.is_empty();
    let is_aligned = ending.starts_with("_aligned");
    Some(match (base, of_heap) {
        ("malloc" | "umalloc", false) if is_aligned => "mi_malloc_aligned",
        ("malloc" | "umalloc", false) => "mi_malloc",
        ("zalloc" | "uzalloc", false) => "mi_zalloc",
        ("calloc" | "ucalloc" | "mallocn", false) => "mi_calloc",
        ("realloc" | "urealloc" | "reallocf" | "rezalloc" | "expand", false) => "mi_realloc",
        ("reallocn" | "recalloc" | "reallocarray", false) => "mi_recalloc",
        ("malloc" | "zalloc", true) => "mi_heap_malloc",
        ("calloc" | "mallocn", true) => "mi_heap_calloc",
        ("realloc" | "reallocf" | "rezalloc", true) => "mi_heap_realloc",
        ("reallocn" | "recalloc", true) => "mi_heap_recalloc",
        _ => return None,
    })
}

fn mimallocs_names() -> Vec<String> {
    let others = WITHOUT_FORMS.iter().map(|(name, _)| (*name).to_owned());
    let formed = HEAPS.iter().flat_map(|heap| {
        let bases = WITH_FORMS.iter();
        bases.flat_map(move |base| ENDINGS.iter().map(move |end| format!("{heap}{base}{end}")))
    });
    others.chain(formed).collect()
}

/// Returns the id of the hooked function with this plain name: a function of C, or one that jemalloc adds.
fn plain(name: &str) -> Option<usize> {
    let id = exact(name)?;
    let is_of_family = || ALLOCATORS.iter().any(|a| name.starts_with(a.prefix));
    let is_operator = name.starts_with("_Z");
    (HOOKED_FUNCTIONS[id].is_of_allocator() && !is_operator && !is_of_family()).then_some(id)
}

fn exact(name: &str) -> Option<usize> {
    HOOKED_FUNCTIONS.iter().position(|f| f.name == name)
}

impl Allocator {
    /// Returns the id of the hooked function for one of the allocator's functions, by its name without the prefix.
    fn function(&self, behind: &str) -> Option<usize> {
        let shape = (self.shape)(behind).and_then(exact);
        shape.or_else(|| plain(behind))
    }
}

/// Names of all hooked functions, and of all functions with the same shapes, with the allocators' own prefixes.
static KNOWN: LazyLock<HashMap<&'static str, usize>> = LazyLock::new(|| {
    let mut known: HashMap<&str, usize> = HashMap::new();
    for allocator in ALLOCATORS {
        let of_c = HOOKED_FUNCTIONS.iter().map(|f| f.name.to_owned());
        for behind in of_c.chain((allocator.names)()) {
            if let Some(function) = allocator.function(&behind) {
                let name = format!("{}{behind}", allocator.prefix);
                // The names live as long as the table, that is, until the program ends.
                known.insert(name.leak(), function);
            }
        }
    }
    known.extend(
        HOOKED_FUNCTIONS
            .iter()
            .enumerate()
            .map(|(id, f)| (f.name, id)),
    );
    known
});

/// Returns the id of the hooked function with this dynamic symbol, or with the shape of this allocator function.
pub fn function_by_name(name: &str) -> Option<usize> {
    KNOWN.get(name).copied()
}

/// Iterates over the names that [`function_by_name`] knows.
pub fn known_names() -> impl Iterator<Item = &'static str> {
    KNOWN.keys().copied()
}

/// Returns the allocator of a library that exports these functions; `None` if it is not one of [`ALLOCATORS`].
pub fn known_allocator(exports: impl Fn(&str) -> bool) -> Option<&'static str> {
    let known = ALLOCATORS.iter().find(|allocator| exports(allocator.mark));
    known.map(|allocator| allocator.name)
}

/// Prefix of an allocator's functions in a module, before the allocator's own names.
#[derive(Debug)]
struct Bundled {
    prefix: String,
    allocator: &'static Allocator,
}

/// Names of allocators' functions in one module, by the prefixes that were found in the module.
#[derive(Debug, Default)]
pub struct AllocatorNames {
    bundled: Vec<Bundled>,
}

/// Evidence for an allocator: two of its functions, with any common prefix, because a single name may belong to a
/// wrapper. The third string is the beginning that these names share with all other names of the allocator, and the
/// fourth is the allocator's known prefix.
const EVIDENCE: [(&str, &str, &str, &str); 2] = [
    ("mallocx", "dallocx", "", "je_"),
    ("mi_malloc_aligned", "mi_free", "mi_", "mi_"),
];

impl AllocatorNames {
    /// Finds the prefixes of allocators in a module with these functions.
    pub fn among<'a>(names: impl Iterator<Item = &'a str> + Clone) -> AllocatorNames {
        let mut bundled: Vec<Bundled> = Vec::new();
        for (mark, other, own, of) in EVIDENCE {
            let found = names.clone().filter_map(|name| name.strip_suffix(mark));
            for prefix in found.filter(|prefix| !prefix.is_empty()) {
                let whole = format!("{prefix}{own}");
                let is_known = bundled.iter().any(|b| b.prefix == whole)
                    || ALLOCATORS.iter().any(|a| a.prefix == whole);
                let companion = format!("{prefix}{other}");
                if is_known || !names.clone().any(|name| name == companion) {
                    continue;
                }
                if let Some(allocator) = ALLOCATORS.iter().find(|a| a.prefix == of) {
                    bundled.push(Bundled {
                        prefix: whole,
                        allocator,
                    });
                }
            }
        }
        AllocatorNames { bundled }
    }

    /// Returns the id of the hooked function for an allocator's function. Operators new and delete belong to no
    /// allocator.
    pub fn function(&self, name: &str) -> Option<usize> {
        self.find(name).map(|(function, _)| function)
    }

    /// Returns the allocator of a function, given its plain name or its name with an allocator's prefix. The outer
    /// option is `None` if the function does not belong to an allocator.
    pub fn allocator(&self, name: &str) -> Option<Option<&'static Allocator>> {
        self.find(name).map(|(_, allocator)| allocator)
    }

    /// Returns true if a name begins like the names of the allocator in this module.
    pub fn is_within(&self, allocator: &Allocator, name: &str) -> bool {
        let mut bundled = self
            .bundled
            .iter()
            .filter(|b| b.allocator.name == allocator.name);
        name.starts_with(allocator.prefix) || bundled.any(|b| name.starts_with(&b.prefix))
    }

    fn find(&self, name: &str) -> Option<(usize, Option<&'static Allocator>)> {
        let bundled = self
            .bundled
            .iter()
            .map(|b| (b.prefix.as_str(), b.allocator));
        let own = ALLOCATORS.iter().map(|a| (a.prefix, a));
        let with_prefix = bundled.chain(own).find_map(|(prefix, allocator)| {
            let shape = allocator.function(name.strip_prefix(prefix)?)?;
            Some((function_by_name(name).unwrap_or(shape), Some(allocator)))
        });
        with_prefix.or_else(|| Some((plain(name)?, None)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hooked(name: &str) -> Option<&'static str> {
        function_by_name(name).map(|id| HOOKED_FUNCTIONS[id].name)
    }

    #[test]
    fn functions_of_allocators() {
        let names = AllocatorNames::default();
        let allocator = |name| names.allocator(name).map(|a| a.map(|a| a.name));
        assert_eq!(allocator("malloc"), Some(None));
        assert_eq!(allocator("je_posix_memalign"), Some(Some("jemalloc")));
        assert_eq!(allocator("_rjem_sdallocx"), Some(Some("jemalloc")));
        assert_eq!(allocator("tc_malloc"), Some(Some("tcmalloc")));
        assert_eq!(allocator("rprealloc"), Some(Some("rpmalloc")));
        for other in [
            "_Znwm",
            "dlopen",
            "je_dlopen",
            "mmap",
            "mi_munmap",
            "mi_malloc_size",
            "mi_malloc_usable_size",
            "mi_heap_free",
            "my_malloc",
            "",
        ] {
            assert_eq!(allocator(other), None, "{other}");
            let is_plain = ["_Znwm", "dlopen", "mmap"].contains(&other);
            assert_eq!(hooked(other).is_some(), is_plain, "{other}");
        }
        assert_eq!(known_allocator(|name| name == "mallocx"), Some("jemalloc"));
        assert_eq!(known_allocator(|name| name == "malloc"), None);
    }

    #[test]
    fn shapes_tell_the_parameters() {
        for (name, function) in [
            ("malloc", "malloc"),
            ("mi_malloc_small", "mi_malloc"),
            ("mi_zalloc_aligned_at", "mi_zalloc"),
            ("mi_heap_zalloc_aligned", "mi_heap_malloc"),
            ("mi_theap_malloc", "mi_heap_malloc"),
            ("mi_rezalloc_aligned", "mi_realloc"),
            ("mi_heap_reallocn", "mi_heap_recalloc"),
            ("mi_new_nothrow", "_ZnwmRKSt9nothrow_t"),
            ("mi_free_size_aligned", "free_aligned_sized"),
            ("je_free_sized", "free_sized"),
            ("_rjem_xallocx", "xallocx"),
            ("tc_malloc", "tc_malloc"),
            ("tc_delete_sized", "_ZdlPvm"),
            ("rpaligned_alloc", "aligned_alloc"),
            ("scalable_posix_memalign", "posix_memalign"),
            ("scalable_aligned_free", "free"),
            ("sn_rust_dealloc", "free_aligned_sized"),
            ("TCMallocInternalNew", "_Znwm"),
        ] {
            assert_eq!(hooked(name), Some(function), "{name}");
        }
        // No name has the prefix by accident.
        for name in known_names().filter(|name| name.starts_with("je_")) {
            assert!(!name.contains("mi_") && !name.contains("tc_"), "{name}");
        }
    }

    /// The names in DuckDB and Apache Arrow.
    #[test]
    fn prefixes_are_found() {
        let symbols = [
            "duckdb_je_mallocx",
            "duckdb_je_dallocx",
            "arrow_mi_malloc_aligned",
            "arrow_mi_free",
            // A wrapper.
            "our_mallocx",
            "main",
        ];
        let names = AllocatorNames::among(symbols.into_iter());
        let function = |name| names.function(name).map(|id| HOOKED_FUNCTIONS[id].name);
        assert_eq!(function("duckdb_je_malloc"), Some("malloc"));
        assert_eq!(function("duckdb_je_mallocx"), Some("mallocx"));
        assert_eq!(function("arrow_mi_heap_zalloc"), Some("mi_heap_malloc"));
        assert_eq!(function("our_malloc"), None);
        assert_eq!(function("mi_zalloc"), Some("mi_zalloc"));
        let allocator = names.allocator("duckdb_je_free").flatten();
        assert_eq!(allocator.map(|a| a.name), Some("jemalloc"));
        assert_eq!(AllocatorNames::default().function("duckdb_je_malloc"), None);
    }

    #[test]
    fn every_shape_is_a_hooked_function() {
        for allocator in ALLOCATORS {
            for name in (allocator.names)() {
                if let Some(shape) = (allocator.shape)(&name) {
                    assert!(exact(shape).is_some(), "{name}: {shape}");
                }
            }
        }
    }
}
