//! Names in the cache, from one run to the next.

use crate::program::{BASE, Program, check_frames, tool};
use memhook_symbols::{RunNames, SearchPath, Source, SymbolCache, Symbolizer};

/// Returns a SearchPath with a cache in the program's directory.
fn caching(program: &Program) -> SearchPath {
    SearchPath {
        roots: vec![program.directory.join("root")],
        cache: Some(SymbolCache::at(program.directory.join("cache"))),
        ..SearchPath::default()
    }
}

#[test]
fn names_are_kept_for_the_next_run() {
    let program = Program::build(&["-Wl,--build-id=sha1"]);
    check_frames(&program.look_in(program.module(), caching(&program)).0);
    // The test adds a name to an entry, to show that names come from the cache.
    let entries = program.directory.join("cache/names-3");
    let entry = std::fs::read_dir(&entries)
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let before = entry.metadata().unwrap().modified().unwrap();
    let (frames, source, problems) = program.look_in(program.module(), caching(&program));
    check_frames(&frames);
    assert_eq!(source, Source::DebugInfo);
    assert!(problems.is_empty(), "{problems:?}");
    let used = entry.metadata().unwrap().modified().unwrap();
    assert!(used > before, "an entry that was used is young");
    // With a file from another build, or without any file, nothing proves that the names are right.
    let mut other = program.module();
    other.build_id.as_mut().unwrap()[0] ^= 1;
    assert_eq!(program.look_in(other, caching(&program)).0, []);
    std::fs::remove_file(&program.path).unwrap();
    assert_eq!(program.look_in(program.module(), caching(&program)).0, []);
    // For new addresses, the files are opened again, and the names from the cache are kept.
    let again = Program::build(&["-Wl,--build-id=sha1"]);
    let mut symbols = Symbolizer::new(caching(&program));
    let mut module = program.module();
    module.candidates = vec![again.path.clone()];
    symbols.set_modules(vec![module]);
    check_frames(&symbols.resolve(BASE + program.mark + 1).frames);
    assert!(!symbols.resolve(BASE + program.mark + 2).frames.is_empty());
}

/// Later symbolizers of a run need not read the files again for the cache.
#[test]
fn names_of_earlier_runs_are_passed_on_within_a_run() {
    let program = Program::build(&["-Wl,--build-id=sha1"]);
    check_frames(&program.look_in(program.module(), caching(&program)).0);
    let names = RunNames::default();
    let search = || SearchPath {
        run_names: Some(names.clone()),
        ..caching(&program)
    };
    check_frames(&program.look_in(program.module(), search()).0);
    assert_eq!(names.count(), 1);
    std::fs::remove_dir_all(program.directory.join("cache")).unwrap();
    let (frames, source, problems) = program.look_in(program.module(), search());
    check_frames(&frames);
    assert_eq!(source, Source::DebugInfo);
    assert!(problems.is_empty(), "{problems:?}");
    // Names that had to be looked up would have been stored.
    assert!(!program.directory.join("cache").exists());
}

/// A build-id is a file's own claim. The names of a forged file are used for that file alone.
#[test]
fn a_forged_build_id_names_nothing_of_the_real_file() {
    let program = Program::build(&["-Wl,--build-id=sha1"]);
    let id = program.build_id.clone().unwrap();
    let hex: String = id.iter().map(|b| format!("{b:02x}")).collect();
    let forged = Program::build(&[
        &format!("-Wl,--build-id=0x{hex}"),
        "-Dplace_order=evil",
        "-Dshop=evil",
    ]);
    assert_eq!(forged.build_id.as_ref(), Some(&id));
    let mut module = forged.module();
    module.path = program.str().into();
    // The forged file is read first, with the same cache.
    let (frames, ..) = forged.look_in(module, caching(&program));
    assert!(format!("{frames:?}").contains("evil"), "{frames:?}");
    let (frames, ..) = program.look_in(program.module(), caching(&program));
    check_frames(&frames);
}

#[test]
fn names_without_debug_information_are_not_kept() {
    let program = Program::build(&["-Wl,--build-id=sha1"]);
    let id = program.build_id.clone().unwrap();
    let rest: String = id[1..].iter().map(|b| format!("{b:02x}")).collect();
    let place = format!("root/usr/lib/debug/.build-id/{:02x}/{rest}.debug", id[0]);
    let debug = program.directory.join(&place);
    std::fs::create_dir_all(debug.parent().unwrap()).unwrap();
    let to = debug.to_str().unwrap();
    tool("objcopy", &["--only-keep-debug", program.str(), to]);
    let hidden = program.directory.join("hidden");
    std::fs::rename(&debug, &hidden).unwrap();
    tool("strip", &["--strip-debug", program.str()]);
    let (_, source, _) = program.look_in(program.module(), caching(&program));
    assert_eq!(source, Source::Symbols);
    // The debug file is installed later.
    std::fs::rename(&hidden, &debug).unwrap();
    let (frames, source, _) = program.look_in(program.module(), caching(&program));
    check_frames(&frames);
    assert_eq!(source, Source::DebugInfo);
}
