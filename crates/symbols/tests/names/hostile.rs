//! Files that are made to exhaust our memory, or to keep us waiting.

use crate::program::{Program, check_frames, tool};
use memhook_symbols::Source;
use object::{Object, ObjectSection};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const HUGE: u64 = 100 << 30;

/// Returns the file offsets of a section's header and contents.
fn section(path: &Path, name: &str) -> (u64, u64) {
    let bytes = std::fs::read(path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let section = file.section_by_name(name).unwrap();
    let table = u64::from_le_bytes(bytes[0x28..0x30].try_into().unwrap());
    (
        table + section.index().0 as u64 * 64,
        section.file_range().unwrap().0,
    )
}

fn write_at(path: &Path, at: u64, value: u64) {
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(&value.to_le_bytes(), at).unwrap();
}

/// Adds a hole to the file that is large enough for everything that the file's headers claim.
fn lengthen(path: &Path) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(2 * HUGE).unwrap();
}

/// Checks that names come from the symbol table.
fn check_symbols(program: &Program) {
    let (frames, ..) = program.look(program.module(), &[Path::new("/")]);
    assert!(!frames.is_empty() && frames[0].file.is_none(), "{frames:?}");
}

#[test]
fn compressed_sections_that_claim_a_hundred_gibibytes() {
    for kind in ["zlib", "zstd"] {
        let program = Program::build(&[]);
        let compress = format!("--compress-debug-sections={kind}");
        tool("objcopy", &[&compress, program.str()]);
        check_frames(&program.look(program.module(), &[]).0);
        for claimed in [HUGE, u64::MAX, u64::MAX / 2] {
            // The test changes `ch_size` (gABI, "Section Compression").
            let (_, contents) = section(&program.path, ".debug_info");
            write_at(&program.path, contents + 8, claimed);
            check_symbols(&program);
        }
    }
}

#[test]
fn sections_in_a_hole() {
    for name in [".debug_info", ".debug_line", ".debug_str"] {
        let program = Program::build(&[]);
        lengthen(&program.path);
        let (header, _) = section_of_sparse(&program.path, name);
        // The test changes `sh_size`.
        write_at(&program.path, header + 0x20, HUGE);
        let (frames, ..) = program.look(program.module(), &[]);
        assert!(frames.len() < 10, "{frames:?}");
    }
    // The name tables and the notes are read before the file is checked.
    for name in [".symtab", ".strtab", ".shstrtab", ".note.gnu.build-id"] {
        let program = Program::build(&["-Wl,--build-id=sha1"]);
        let (header, _) = section(&program.path, name);
        lengthen(&program.path);
        write_at(&program.path, header + 0x20, HUGE);
        let _ = program.look(program.module(), &[]);
    }
}

/// Like `section`, without reading the whole file.
fn section_of_sparse(path: &Path, name: &str) -> (u64, u64) {
    let copy = path.with_extension("start");
    let mut start = vec![0; 1 << 20];
    let file = File::open(path).unwrap();
    let length = file.read_at(&mut start, 0).unwrap();
    std::fs::write(&copy, &start[..length]).unwrap();
    section(&copy, name)
}

/// Without a build-id, only the checksum of the whole file shows that the right file was found.
#[test]
fn debug_files_that_never_end() {
    let program = Program::build(&["-Wl,--build-id=none"]);
    let debug = program.split("marks.debug");
    let link = format!("--add-gnu-debuglink={}", debug.display());
    tool("objcopy", &[&link, program.str()]);
    check_frames(&program.look(program.module(), &[Path::new("/")]).0);
    lengthen(&debug);
    let (frames, source, problems) = program.look(program.module(), &[Path::new("/")]);
    assert_eq!((frames, source), (vec![], Source::Nothing));
    assert!(problems[0].contains("marks.debug: "), "{problems:?}");
    for put in ["mkfifo", "ln -s /dev/zero"] {
        std::fs::remove_file(&debug).unwrap();
        let words: Vec<&str> = put.split(' ').collect();
        tool(
            words[0],
            &[&words[1..], &[debug.to_str().unwrap()]].concat(),
        );
        let (frames, _, problems) = program.look(program.module(), &[Path::new("/")]);
        assert_eq!(frames, []);
        assert!(problems[0].contains("not a regular file"), "{problems:?}");
    }
    // The endless file replaces the program itself.
    std::fs::remove_file(&program.path).unwrap();
    tool("mkfifo", &[program.str()]);
    let (_, _, problems) = program.look(program.module(), &[Path::new("/")]);
    assert!(problems[0].contains("not a regular file"), "{problems:?}");
}
