//! Every possible location of symbols, and files that do not match.

use crate::program::{BASE, Program, check_frames, tool};
use memhook_symbols::{ModuleFile, SearchPath, Source, SymbolError, Symbolizer};
use object::Object;
use std::{fs::File, path::Path, sync::Arc, time::Duration};

#[test]
fn debug_information_in_the_file() {
    let program = Program::build(&[]);
    let (frames, source, problems) = program.look(program.module(), &[]);
    check_frames(&frames);
    assert_eq!(source, Source::DebugInfo);
    assert!(problems.is_empty(), "{problems:?}");
}

#[test]
fn compressed_debug_information() {
    let program = Program::build(&["-gz=zlib"]);
    check_frames(&program.look(program.module(), &[]).0);
}

#[test]
fn a_deleted_file_by_its_bytes() {
    let program = Program::build(&[]);
    let mut module = program.module();
    module.image = Some(std::fs::read(&program.path).unwrap().into());
    std::fs::write(&program.path, "something else").unwrap();
    let (frames, _, problems) = program.look(module, &[]);
    check_frames(&frames);
    assert!(problems.is_empty(), "{problems:?}");
}

/// Several threads read an open file simultaneously, each at different places.
#[test]
fn a_deleted_file_that_is_open() {
    let program = Program::build(&[]);
    let mut module = program.module();
    module.opened = Some(Arc::new(File::open(&program.path).unwrap()));
    std::fs::remove_file(&program.path).unwrap();
    std::fs::write(&program.path, "something else").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let (frames, _, problems) = program.look(module.clone(), &[]);
                check_frames(&frames);
                assert!(problems.is_empty(), "{problems:?}");
            });
        }
    });
    // Names of another build would be guesses. The file at the path is tried, and refused too.
    module.opened = Some(Arc::new(File::open("/bin/true").unwrap()));
    let (_, source, problems) = program.look(module, &[]);
    assert_eq!(
        (source, problems.len()),
        (Source::Nothing, 2),
        "{problems:?}"
    );
}

#[test]
fn a_replaced_file_is_refused() {
    let program = Program::build(&[]);
    let other = Program::build(&["-DOTHER", "-O0"]);
    assert_ne!(program.build_id, other.build_id);
    std::fs::copy(&other.path, &program.path).unwrap();
    let (frames, source, problems) = program.look(program.module(), &[]);
    assert_eq!((frames, source), (vec![], Source::Nothing));
    assert!(
        problems[0].contains("is from another build"),
        "{problems:?}"
    );
    // If a second place has the right file, it is used.
    let right = Program::build(&[]);
    let mut module = program.module();
    module.candidates.push(right.path.clone());
    check_frames(&program.look(module, &[]).0);
}

#[test]
fn symbol_tables() {
    let program = Program::build(&[]);
    tool("strip", &["--strip-debug", program.str()]);
    let (frames, source, _) = program.look(program.module(), &[]);
    let names: Vec<_> = frames.iter().map(|f| f.function.as_deref()).collect();
    // The label is a symbol too, but place_order is the function.
    assert!(
        names == [Some("shop::place_order(int)")] || names == [Some("mark_inner")],
        "{names:?}"
    );
    assert_eq!(source, Source::Symbols);
    // All symbols are gone, and no name is better than a wrong name.
    tool("strip", &["--strip-all", program.str()]);
    let (frames, _, _) = program.look(program.module(), &[]);
    assert_eq!(frames, []);
    let exporting = Program::build(&["-rdynamic"]);
    tool("strip", &["--strip-all", exporting.str()]);
    let (frames, source, _) = exporting.look(exporting.module(), &[]);
    assert!(frames[0].function.is_some());
    assert_eq!(source, Source::DynamicSymbols);
}

#[test]
fn a_debug_file_by_build_id() {
    let program = Program::build(&["-Wl,--build-id=sha1"]);
    let id = program.build_id.clone().unwrap();
    let rest: String = id[1..].iter().map(|b| format!("{b:02x}")).collect();
    let place = format!("root/usr/lib/debug/.build-id/{:02x}/{rest}.debug", id[0]);
    program.split(&place);
    let root = program.directory.join("root");
    let (frames, source, _) = program.look(program.module(), &[Path::new("/nowhere"), &root]);
    check_frames(&frames);
    assert_eq!(source, Source::DebugInfo);
}

#[test]
fn a_debug_file_by_link() {
    for id in ["-Wl,--build-id=sha1", "-Wl,--build-id=none"] {
        for place in ["marks.debug", ".debug/marks.debug"] {
            let program = Program::build(&[id]);
            let debug = program.split(place);
            let link = format!("--add-gnu-debuglink={}", debug.display());
            tool("objcopy", &[&link, program.str()]);
            let (frames, _, problems) = program.look(program.module(), &[Path::new("/")]);
            check_frames(&frames);
            assert!(problems.is_empty(), "{problems:?}");
            // The place has another build's file.
            let other = Program::build(&[id, "-O0"]).split("marks.debug");
            let _ = std::fs::copy(&other, &debug);
        }
    }
}

#[test]
fn a_wrong_debug_file_is_refused() {
    for (id, word) in [("sha1", "is from another build"), ("none", "checksum")] {
        let flag = format!("-Wl,--build-id={id}");
        let program = Program::build(&[&flag]);
        let debug = program.split("marks.debug");
        let link = format!("--add-gnu-debuglink={}", debug.display());
        tool("objcopy", &[&link, program.str()]);
        let other = Program::build(&[&flag, "-DOTHER", "-O1"]);
        std::fs::copy(other.split("marks.debug"), &debug).unwrap();
        let (frames, source, problems) = program.look(program.module(), &[Path::new("/")]);
        assert_eq!(frames, [], "{id}");
        assert_eq!(source, Source::Nothing);
        assert!(problems[0].contains(word), "{problems:?}");
    }
}

#[test]
fn damaged_files_and_pipes_cost_only_names() {
    let program = Program::build(&[]);
    let bytes = std::fs::read(&program.path).unwrap();
    for at in (64..bytes.len()).step_by(bytes.len() / 40) {
        let mut damaged = bytes.clone();
        damaged[at..]
            .iter_mut()
            .step_by(7)
            .for_each(|byte| *byte ^= 0x55);
        let mut module = program.module();
        module.image = Some(damaged.into());
        let mut symbols = Symbolizer::new(vec!["/".into()]);
        symbols.set_modules(vec![module]);
        symbols.resolve(BASE + program.mark + 1);
        symbols.resolve(BASE + program.mark + 9);
    }
    std::fs::remove_file(&program.path).unwrap();
    tool("mkfifo", &[program.str()]);
    let (_, source, problems) = program.look(program.module(), &[]);
    assert_eq!(source, Source::Nothing);
    assert!(problems[0].contains("not a regular file"), "{problems:?}");
}

/// The test looks up names in its own Rust program.
#[test]
fn own_functions() {
    let address = own_functions as fn() as usize as u64;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let exe = std::env::current_exe().unwrap();
    let bounds: Vec<u64> = maps
        .lines()
        .filter(|line| line.ends_with(exe.to_str().unwrap()))
        .flat_map(|line| line.split([' ', '-']).take(2))
        .map(|hex| u64::from_str_radix(hex, 16).unwrap())
        .collect();
    let bytes = std::fs::read(&exe).unwrap();
    let first = object::File::parse(&*bytes)
        .unwrap()
        .relative_address_base();
    let module = ModuleFile {
        path: exe.to_str().unwrap().into(),
        image: Some(bytes.into()),
        base: bounds[0] - first,
        start: bounds[0],
        end: *bounds.last().unwrap(),
        ..ModuleFile::default()
    };
    let mut symbols = Symbolizer::new(vec!["/".into()]);
    symbols.set_modules(vec![module]);
    let location = symbols.resolve(address + 1);
    let last = location.frames.last().unwrap();
    // Debug information that only has lines leaves out the modules' names.
    assert!(
        last.function
            .as_deref()
            .is_some_and(|name| name.ends_with("own_functions"))
    );
    assert!(last.file.as_deref().unwrap().ends_with("names/files.rs"));
    assert_eq!(symbols.location(1).module, None);
}

#[test]
fn problems_say_what_to_look_at() {
    let problem = SymbolError::Checksum {
        path: "/x.debug".into(),
        found: 1,
        expected: 2,
    };
    assert_eq!(
        problem.to_string(),
        "/x.debug is not the right debug file: its checksum is 00000001, expected 00000002"
    );
}

/// Returns true if this process has the file open or mapped.
fn is_open(path: &Path) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let mut links = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    maps.contains(path.to_str().unwrap()) || links.any(|link| link == path)
}

#[test]
fn files_are_closed_while_nothing_new_is_asked_for() {
    let program = Program::build(&[]);
    let mut symbols = Symbolizer::new(SearchPath::default());
    symbols.set_modules(vec![program.module()]);
    let at_mark = BASE + program.mark + 1;
    check_frames(&symbols.resolve(at_mark).frames);
    assert!(is_open(&program.path));
    symbols.close_unused(Duration::from_secs(3600));
    assert!(is_open(&program.path));
    symbols.close_unused(Duration::ZERO);
    // The thread of the module ends by itself.
    while is_open(&program.path) {
        std::thread::yield_now();
    }
    check_frames(&symbols.resolve(at_mark).frames);
    assert!(!is_open(&program.path), "that was known");
    let other = symbols.resolve(at_mark - 1);
    assert!(!other.frames.is_empty());
    assert!(is_open(&program.path));
}

/// GCC calls the function just `operator()`, inlined or not.
#[test]
fn a_lambda_has_the_function_that_it_is_written_in() {
    for flags in [&["-O2"], &["-O0"]] {
        let program = Program::of("lambdas.cc", flags);
        let (frames, ..) = program.look(program.module(), &[]);
        let names: Vec<_> = frames
            .iter()
            .filter_map(|f| f.function.as_deref())
            .collect();
        let of_lambda = names.first().expect("a name");
        assert!(
            of_lambda.starts_with("shop::Session::load(int)::{lambda"),
            "{names:?}"
        );
        assert!(of_lambda.contains("#2}::operator()"), "{names:?}");
    }
}

/// A stripped file contains the symbols of all its functions, as in Fedora's packages.
#[test]
fn symbols_in_a_section_that_xz_has_packed() {
    memhook_tests::programs::installed("xz");
    let program = Program::build(&[]);
    let mini = program.directory.join("mini");
    let mini = mini.to_str().expect("a path");
    tool("objcopy", &["--only-keep-debug", program.str(), mini]);
    tool("strip", &["--strip-debug", mini]);
    tool("xz", &[mini]);
    tool("strip", &["--strip-all", program.str()]);
    let (frames, ..) = program.look(program.module(), &[]);
    assert_eq!(frames, []);
    let section = format!(".gnu_debugdata={mini}.xz");
    tool("objcopy", &["--add-section", &section, program.str()]);
    let (frames, source, problems) = program.look(program.module(), &[]);
    let names: Vec<_> = frames.iter().map(|f| f.function.as_deref()).collect();
    assert!(
        names == [Some("shop::place_order(int)")] || names == [Some("mark_inner")],
        "{names:?}"
    );
    assert_eq!((source, problems.len()), (Source::Symbols, 0));
}

#[test]
fn split_debug_information() {
    for compiler in [&["-gdwarf-5"][..], &["-gdwarf-4"]] {
        let flags = [&["-gsplit-dwarf"], compiler].concat();
        let program = Program::build(&flags);
        let is_unit = |path: &Path| path.extension().is_some_and(|name| name == "dwo");
        let files = std::fs::read_dir(&program.directory).unwrap();
        let mut files = files.map(|entry| entry.unwrap().path());
        let unit = files.find(|path| is_unit(path)).expect("a .dwo file");
        let roots = [Path::new("/")];
        check_frames(&program.look(program.module(), &roots).0);
        // The file is not below a root, but next to the program.
        check_frames(&program.look(program.module(), &[]).0);
        // Names of another build would be guesses. The `dwp` of binutils does not support DWARF 5.
        let is_packed = compiler == ["-gdwarf-4"];
        let package = format!("{}.dwp", program.str());
        if is_packed {
            tool("dwp", &["-e", program.str(), "-o", &package]);
        }
        let other = Program::build(&[&flags[..], &["-O0", "-DOTHER"]].concat());
        let files = std::fs::read_dir(&other.directory).unwrap();
        let mut files = files.map(|entry| entry.unwrap().path());
        let wrong = files.find(|path| is_unit(path)).expect("a .dwo file");
        std::fs::copy(&wrong, &unit).unwrap();
        if is_packed {
            check_frames(&program.look(program.module(), &roots).0);
            std::fs::rename(&package, program.directory.join("away")).unwrap();
        }
        let is_first = |frames: &[memhook_symbols::Frame]| {
            let outer = frames.last().expect("a frame");
            outer.function.as_deref() == Some("shop::place_order(int)")
                || outer.function.as_deref() == Some("mark_inner")
        };
        let (frames, ..) = program.look(program.module(), &roots);
        assert!(frames.len() == 1 && is_first(&frames), "{frames:?}");
        std::fs::remove_file(&unit).unwrap();
        let (frames, ..) = program.look(program.module(), &roots);
        assert!(frames.len() == 1 && is_first(&frames), "{frames:?}");
    }
}
