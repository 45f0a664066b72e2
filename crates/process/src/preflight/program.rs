//! Checks of the kind of program: format, linking, libc, allocators.

use super::access::Status;
use super::{Check, Purpose};
use crate::allocator_functions::has_own_allocator;
use crate::arch::native::relocations;
use crate::hook_copies::is_ours;
use crate::target_root::TargetRoot;
use crate::{CLibrary, CLibraryKind, Mapping, ModuleImage, glibc_version, is_static, proc_path};
use goblin::elf::header;
use goblin::elf::program_header::{PT_INTERP, PT_NOTE};
use memhook_abi::known_allocator;
use std::{fs::File, os::unix::fs::FileExt};

/// Head of an ELF file, which is enough to refuse it.
struct Head {
    is_64: bool,
    machine: u16,
    has_interpreter: bool,
    /// True if it has a note written by the Go linker.
    is_go: bool,
    /// True if it has [`ATTACHER_NOTE`].
    is_attacher: bool,
}

/// Name, including padding, of the note in every program that attaches to others with these crates (`memhook_inject`
/// links it in).
const ATTACHER_NOTE: &[u8] = b"memhook-rs\0\0";

/// Upper bound on the size of notes that are searched for these names.
const MOST_NOTE_BYTES: u64 = 4096;

/// Reads only the headers of the executable, because it may be large.
fn head(file: &File) -> Option<Head> {
    let mut start = [0; 64];
    file.read_exact_at(&mut start, 0).ok()?;
    if !start.starts_with(header::ELFMAG) {
        return None;
    }
    let word = |at: usize| u16::from_le_bytes([start[at], start[at + 1]]);
    let is_64 = start[header::EI_CLASS] == header::ELFCLASS64;
    let mut found = Head {
        is_64,
        machine: word(18),
        has_interpreter: false,
        is_go: false,
        is_attacher: false,
    };
    if !is_64 {
        return Some(found);
    }
    // Elf64_Ehdr: e_phoff at 32, e_phentsize at 54, e_phnum at 56; Elf64_Phdr: p_type at 0, p_offset at 8,
    // p_filesz at 32.
    let offset = u64::from_le_bytes(start[32..40].try_into().ok()?);
    let (size, count) = (u64::from(word(54)), u64::from(word(56)));
    for i in 0..count.min(256) {
        let mut segment = [0; 40];
        file.read_exact_at(&mut segment, offset.checked_add(i * size)?)
            .ok()?;
        let field = |at: usize| segment[at..at + 8].try_into().map(u64::from_le_bytes);
        match u32::from_le_bytes(segment[..4].try_into().ok()?) {
            PT_INTERP => found.has_interpreter = true,
            PT_NOTE => {
                let mut notes = vec![0; field(32).ok()?.min(MOST_NOTE_BYTES) as usize];
                let read = file.read_at(&mut notes, field(8).ok()?).unwrap_or(0);
                // The owner name of the note, preceded by its length (elf(5), "Notes").
                let has = |name: &[u8]| notes[..read].windows(name.len()).any(|n| n == name);
                found.is_go |= has(b"Go\0\0");
                found.is_attacher |= has(ATTACHER_NOTE);
            }
            _ => {}
        }
    }
    Some(found)
}

/// Returns true if a process runs a program that attaches to others with these crates: memhook-rs of any version and
/// under any name, or a third-party profiler. `None` if its program cannot be read.
pub fn is_attacher(pid: i32) -> Option<bool> {
    let file = File::open(proc_path(pid, "exe")).ok()?;
    Some(head(&file).is_some_and(|head| head.is_attacher))
}

pub(super) fn executable(
    pid: i32,
    status: &Status,
    libc: Option<&CLibrary>,
    purpose: Purpose,
) -> Result<Check, Check> {
    let who = format!("process {pid} ({})", status.name);
    let path = proc_path(pid, "exe");
    let file = File::open(&path).map_err(|e| {
        Check::bad(
            "executable",
            format!("{path}: {e}"),
            "run as root or as the owner of the process",
        )
    })?;
    const ONLY: &str = "only 64-bit x86 programs can be traced";
    let refuse = |what: String| Check::bad("executable", format!("{who} is {what}"), ONLY);
    let Some(head) = head(&file) else {
        return Err(refuse("not an ELF program".into()));
    };
    if !head.is_64 {
        return Err(refuse("a 32-bit program".into()));
    }
    if head.machine != relocations::MACHINE {
        let machine = header::machine_to_str(head.machine);
        return Err(refuse(format!(
            "a program for another architecture ({machine})"
        )));
    }
    if head.is_attacher {
        // An attacher maps the regions of other processes. If it were traced itself, they would be mistaken for remains
        // of a killed attacher.
        return Err(Check::bad(
            "executable",
            format!(
                "{who} is memhook-rs, or a profiler built on it, and attaches to other processes itself"
            ),
            "name the program that it traces",
        ));
    }
    let name = || {
        let path = std::fs::read_link(&path).map(|p| p.display().to_string());
        path.unwrap_or_default()
    };
    // If the program was started through the loader, the executable is the loader, which has no interpreter.
    if !head.has_interpreter && libc.is_none() {
        let needs_symbols = purpose == Purpose::Trace || head.is_go;
        if !needs_symbols || has_own_allocator(&file) {
            let finding = format!("{}: 64-bit x86, statically linked", name());
            return Ok(Check::good("executable", finding));
        }
        return Err(if head.is_go {
            Check::bad(
                "executable",
                format!("{who} is a Go program: Go's runtime manages its memory"),
                "use Go's own profiler (runtime/pprof)",
            )
        } else {
            Check::bad(
                "executable",
                format!(
                    "{who} is statically linked and stripped: no symbol says where its allocator is"
                ),
                "keep the symbol table of the program, or link it dynamically",
            )
        });
    }
    let finding = format!("{}: 64-bit x86, dynamically linked", name());
    Ok(Check::good("executable", finding))
}

pub(super) fn libc(pid: i32, status: &Status, libc: Option<&CLibrary>) -> Result<Check, Check> {
    let what = match libc.map(|libc| (libc.kind, &libc.code)) {
        Some((CLibraryKind::Glibc, code)) if code.deleted => {
            return Ok(Check::note(
                "libc",
                format!("glibc, {}, deleted since it was loaded", code.path),
                "nothing to do if you run as root: memhook-rs reads the mapped file, not its replacement",
            ));
        }
        Some((CLibraryKind::Glibc, code)) => {
            return Ok(Check::good("libc", format!("glibc, {}", code.path)));
        }
        Some((CLibraryKind::Musl, code)) => {
            return Ok(Check::note(
                "libc",
                format!("musl, {}", code.path),
                "attach, run and gate work; scan, which reads glibc's heap, does not",
            ));
        }
        None if is_static(pid) => {
            return Ok(Check::note(
                "libc",
                "a part of the program",
                "attach, run and gate work; scan, which reads glibc's heap, does not",
            ));
        }
        None => "runs on neither glibc nor musl",
    };
    Err(Check::bad(
        "libc",
        format!("process {pid} ({}) {what}", status.name),
        "only glibc 2.17 and later, and musl, are supported",
    ))
}

pub(super) fn libc_version(modules: &[ModuleImage]) -> Option<Check> {
    // musl is its own loader, and its version does not matter here.
    let libc = modules.iter().find(|m| m.is_libc && !m.is_loader)?;
    Some(match glibc_version(&libc.bytes) {
        Some(version) => Check::good("libc version", version),
        None => Check::note(
            "libc version",
            "unknown",
            "glibc 2.17 to 2.41 are supported; please report what happens",
        ),
    })
}

pub(super) fn allocators(modules: &[ModuleImage]) -> Vec<Check> {
    let mut found = Vec::new();
    for module in modules.iter().filter(|m| !m.is_loader && !m.is_libc) {
        let exports = |name: &str| module.facts.exported(name).is_some();
        let what = match known_allocator(exports) {
            Some(allocator) => allocator,
            None if exports("malloc") => "another allocator",
            None => continue,
        };
        let finding = format!("{what} in {}", module.name());
        found.push(if module.is_main {
            Check::note(
                "allocator",
                finding + ", which is the executable",
                "its own direct calls are not seen; other modules' calls are",
            )
        } else {
            Check::good("allocator", finding)
        });
    }
    if found.is_empty() {
        found.push(Check::good("allocator", "the libc's own"));
    }
    found
}

/// Reports code that cannot be hooked because it is mapped from files that are not modules. Each file causes one note,
/// however often it is mapped.
pub(super) fn unreadable(pid: i32, maps: &[Mapping], modules: &[ModuleImage]) -> Vec<Check> {
    // A program may map its own code again, as V8 does with its built-in functions.
    let is_of = |m: &Mapping, module: &ModuleImage| {
        module.contains(m.start) || (!m.deleted && module.path == m.path)
    };
    let known = |m: &&Mapping| modules.iter().any(|module| is_of(m, module));
    let mut found: Vec<(&str, Check)> = Vec::new();
    let code = maps.iter().filter(|m| m.exec && m.path.starts_with('/'));
    for mapping in code.filter(|m| !known(m) && !is_ours(m)) {
        if found.iter().any(|(path, _)| *path == mapping.path) {
            continue;
        }
        let deleted = if mapping.deleted { " (deleted)" } else { "" };
        let path = format!("{}{deleted}", mapping.path);
        let check = match TargetRoot::of(pid).is_elf(mapping) {
            // The file is the saved memory of a runtime, or the output of a JIT compiler that writes through another
            // mapping.
            Some(false) => Check::note(
                "code",
                format!(
                    "{path} is mapped as code but is not an ELF file: its own calls are not seen"
                ),
                "nothing to do: calls that the runtime's libraries make for this code are seen",
            ),
            Some(true) => Check::note(
                "unreadable",
                format!("{path}: its calls are not seen"),
                "nothing to do: its file is damaged, or is mapped without the loader",
            ),
            None => Check::note(
                "unreadable",
                format!("{path}: its calls are not seen"),
                "run as root: memhook-rs can then read mapped files that were deleted or replaced",
            ),
        };
        found.push((&mapping.path, check));
    }
    found.into_iter().map(|(_, check)| check).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_of_an_elf_file_is_read() {
        let head_of = |path: &str| head(&File::open(path).unwrap());
        let shell = head_of("/bin/sh").unwrap();
        assert!(shell.is_64 && shell.has_interpreter && shell.machine == header::EM_X86_64);
        assert!(!head_of("/proc/self/exe").unwrap().has_interpreter);
        assert!(head_of("/etc/passwd").is_none());
    }
}
