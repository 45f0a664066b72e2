//! Checks that files are read once for several symbolizers, and that names are looked up once.

use crate::program::{BASE, Program, check_frames};
use memhook_symbols::{ModuleFile, RunNames, SearchPath, SharedReaders, Source, Symbolizer};
use std::path::PathBuf;
use std::time::Duration;

fn sharing(readers: &SharedReaders, roots: Vec<PathBuf>) -> SearchPath {
    SearchPath {
        roots,
        readers: Some(readers.clone()),
        ..SearchPath::default()
    }
}

fn symbolizer(readers: &SharedReaders, module: ModuleFile) -> Symbolizer {
    let mut symbols = Symbolizer::new(sharing(readers, Vec::new()));
    symbols.set_modules(vec![module]);
    symbols
}

#[test]
fn one_file_has_one_reader_which_ends_with_the_last_who_asked() {
    let program = Program::build(&["-Wl,--build-id=sha1"]);
    let readers = SharedReaders::within(64 << 20);
    let mut all: Vec<Symbolizer> = (0..20)
        .map(|_| symbolizer(&readers, program.module()))
        .collect();
    for symbols in &mut all {
        symbols.request([BASE + program.mark + 1]);
    }
    for symbols in &mut all {
        check_frames(&symbols.resolve(BASE + program.mark + 1).frames);
    }
    assert_eq!(readers.count(), 1);
    for symbols in &mut all {
        symbols.close_unused(Duration::ZERO);
    }
    // The symbolizers' threads drop their readers.
    while readers.count() != 0 {
        std::thread::yield_now();
    }
    check_frames(&all[0].resolve(BASE + program.mark + 1).frames);
    assert!(!all[0].resolve(BASE + program.mark + 2).frames.is_empty());
    assert_eq!(readers.count(), 1);
}

/// A file claims, by path and build-id, to be the file that another process maps.
#[test]
fn a_forged_build_id_names_nothing_of_the_real_file() {
    let program = Program::build(&["-Wl,--build-id=sha1"]);
    let id = program.build_id.clone().expect("a build-id");
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let id_of_real = format!("-Wl,--build-id=0x{hex}");
    let forged = Program::build(&[&id_of_real, "-Dplace_order=evil", "-Dshop=evil"]);
    let mut module = forged.module();
    module.path = program.str().into();
    let readers = SharedReaders::within(64 << 20);
    let mut symbols = symbolizer(&readers, module);
    let frames = symbols.resolve(BASE + forged.mark + 1).frames;
    assert!(format!("{frames:?}").contains("evil"), "{frames:?}");
    let mut others = symbolizer(&readers, program.module());
    check_frames(&others.resolve(BASE + program.mark + 1).frames);
    assert_eq!(readers.count(), 2);
}

/// There is space for only one file. The idle reader drops its data, and reads the file again on
/// the next request.
#[test]
fn readers_give_way_to_each_other() {
    let programs = [(); 3].map(|()| Program::build(&["-Wl,--build-id=sha1"]));
    let readers = SharedReaders::within(1);
    let modules = programs.iter().map(Program::module);
    let mut all: Vec<Symbolizer> = modules.map(|m| symbolizer(&readers, m)).collect();
    for byte in 1..4 {
        for (symbols, program) in all.iter_mut().zip(&programs) {
            let frames = symbols.resolve(BASE + program.mark + byte).frames;
            let name = frames.first().and_then(|frame| frame.function.as_deref());
            // The name is a label, as in symbol tables.
            assert_eq!(name, Some("mark_inner"), "{frames:?}");
        }
    }
    // The debug information of one file alone is too large.
    let source = all[0].sources().next().expect("it was read");
    assert_eq!(source.source, Source::Symbols);
    let problems: Vec<String> = source.problems.iter().map(ToString::to_string).collect();
    assert!(
        problems.concat().contains("available for names"),
        "{problems:?}"
    );
}

/// The second file claims, by path and build-id, to be the first one.
#[test]
fn names_of_a_run_are_those_of_the_very_file() {
    let program = Program::build(&["-Wl,--build-id=sha1"]);
    let id = program.build_id.clone().expect("a build-id");
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let id_of_real = format!("-Wl,--build-id=0x{hex}");
    let forged = Program::build(&[&id_of_real, "-Dplace_order=evil", "-Dshop=evil"]);
    let names = RunNames::default();
    let search = || SearchPath {
        run_names: Some(names.clone()),
        ..SearchPath::default()
    };
    for _ in 0..2 {
        let (frames, source, problems) = program.look_in(program.module(), search());
        check_frames(&frames);
        assert_eq!(source, Source::DebugInfo);
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(names.count(), 1);
    }
    let mut module = forged.module();
    module.path = program.str().into();
    let frames = forged.look_in(module, search()).0;
    assert!(format!("{frames:?}").contains("evil"), "{frames:?}");
    assert_eq!(names.count(), 2);
}
