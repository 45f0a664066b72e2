//! All code that reads untrusted bytes, as functions over bytes. The bytes may come from a target,
//! a file, or the kernel's text about a hostile process. No function may panic, hang, or use an
//! unbounded amount of memory.
//!
//! The fuzzer (`fuzz/README.md`) searches for inputs that violate this. This crate's test runs the
//! saved inputs and mutations of them.

mod elf;
mod files;
mod heap;
mod input;
mod made_code;
mod names;
mod raced;
mod recording;
mod region;
mod report;
mod requests;
mod scratch_file;
mod seccomp;
mod text;

pub use input::Input;

/// A function that takes any bytes.
pub type Surface = fn(&[u8]);

/// All surfaces by name. A directory with this name in `fuzz/corpus` contains the surface's inputs.
pub const SURFACES: [(&str, Surface); 23] = [
    ("baseline", text::baseline),
    ("bundle", files::bundle),
    ("core_dump", heap::core_dump),
    ("debuglink", names::debug_link),
    ("demangle", names::demangle),
    ("dwarf", names::look_up),
    ("eh_frame", elf::unwinding),
    ("elf", elf::view),
    ("heap", heap::made_up),
    ("http_request", requests::http),
    ("jit_dump", made_code::jit_dump),
    ("json_report", report::read_back),
    ("perf_map", made_code::perf_map),
    ("pprof", report::stored_pprof),
    ("proc_text", text::proc_text),
    ("recording", recording::chunks),
    ("recording_file", recording::file),
    ("region", region::changed),
    ("region_raced", raced::changed_meanwhile),
    ("seccomp", seccomp::filter),
    ("snapshot", heap::snapshot),
    ("suppressions", text::suppressions),
    ("verdict", heap::verdict),
];

/// Returns the surface with this name.
pub fn surface(name: &str) -> Option<Surface> {
    SURFACES.iter().find(|(n, _)| *n == name).map(|(_, f)| *f)
}
