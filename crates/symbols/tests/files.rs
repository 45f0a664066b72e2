//! Every place that symbols can be in, and files that are not the right ones.

use memhook_symbols::{Frame, ModuleFile, Places, Source, SymbolCache, SymbolError, Symbolizer};
use object::{Object, ObjectSymbol};
use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

const BASE: u64 = 0x5555_0000_0000;

/// A folder that goes away, with a program in it.
struct Program {
    folder: PathBuf,
    path: PathBuf,
    mark: u64,
    build_id: Option<Vec<u8>>,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn tool(name: &str, args: &[&str]) {
    let status = Command::new(name).args(args).status();
    assert!(status.unwrap().success(), "{name} {args:?}");
}

impl Program {
    fn build(flags: &[&str]) -> Program {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("memhook-symbols-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("marks");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/marks.cc");
        let mut args = vec!["-g", "-O2", source.to_str().unwrap(), "-o"];
        args.push(path.to_str().unwrap());
        args.extend(flags);
        tool("c++", &args);
        let bytes = std::fs::read(&path).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let mark = file.symbol_by_name("mark_inner").unwrap().address();
        let build_id = file.build_id().unwrap().map(<[u8]>::to_vec);
        Program {
            folder,
            path,
            mark,
            build_id,
        }
    }

    fn str(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// Moves the debug information out, to `debug` in the folder.
    fn split(&self, debug: &str) -> PathBuf {
        let debug = self.folder.join(debug);
        std::fs::create_dir_all(debug.parent().unwrap()).unwrap();
        let to = debug.to_str().unwrap();
        tool("objcopy", &["--only-keep-debug", self.str(), to]);
        tool("strip", &["--strip-all", self.str()]);
        debug
    }

    fn module(&self) -> ModuleFile {
        ModuleFile {
            path: self.str().into(),
            candidates: vec![self.path.clone()],
            build_id: self.build_id.clone(),
            base: BASE,
            start: BASE,
            end: BASE + 0x10_0000,
            ..ModuleFile::default()
        }
    }

    /// Frames at the mark, where they come from, and what was refused.
    fn look(&self, module: ModuleFile, roots: &[&Path]) -> (Vec<Frame>, Source, Vec<String>) {
        let roots = roots.iter().map(|r| r.to_path_buf()).collect();
        self.look_in(
            module,
            Places {
                roots,
                ..Places::default()
            },
        )
    }

    fn look_in(&self, module: ModuleFile, places: Places) -> (Vec<Frame>, Source, Vec<String>) {
        let mut symbols = Symbolizer::searching(places);
        symbols.set_modules(vec![module]);
        // The mark is the call; its return address is the byte after.
        let location = symbols.resolve(BASE + self.mark + 1);
        assert_eq!(location.module.as_deref(), Some("marks"));
        assert_eq!(location.svma, self.mark);
        let source = symbols.sources().next().unwrap();
        let problems = source.problems.iter().map(ToString::to_string).collect();
        (location.frames, source.source, problems)
    }
}

fn check_frames(frames: &[Frame]) {
    let [inner, outer] = frames else {
        panic!("{frames:?}");
    };
    assert_eq!(
        inner.function.as_deref(),
        Some("shop::Order::reserve(unsigned long)")
    );
    assert_eq!((inner.line, inner.inlined), (Some(9), true));
    assert!(inner.file.as_deref().unwrap().ends_with("marks.cc"));
    assert_eq!(outer.function.as_deref(), Some("shop::place_order(int)"));
    assert_eq!((outer.line, outer.inlined), (Some(15), false));
}

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

#[test]
fn a_replaced_file_is_refused() {
    let program = Program::build(&[]);
    let other = Program::build(&["-DOTHER", "-O0"]);
    assert_ne!(program.build_id, other.build_id);
    std::fs::copy(&other.path, &program.path).unwrap();
    let (frames, source, problems) = program.look(program.module(), &[]);
    assert_eq!((frames, source), (vec![], Source::Nothing));
    assert!(problems[0].contains("is of another build"), "{problems:?}");
    // A second place that has the right one is taken.
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
    // Nothing left: no name is better than a wrong one.
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
    let root = program.folder.join("root");
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
            // Another build's file in that place.
            let other = Program::build(&[id, "-O0"]).split("marks.debug");
            let _ = std::fs::copy(&other, &debug);
        }
    }
}

#[test]
fn a_wrong_debug_file_is_refused() {
    for (id, word) in [("sha1", "is of another build"), ("none", "checksum")] {
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
        let mut symbols = Symbolizer::default();
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

/// Places with a cache in the program's folder.
fn caching(program: &Program) -> Places {
    Places {
        roots: vec![program.folder.join("root")],
        cache: Some(SymbolCache::at(program.folder.join("cache"))),
        ..Places::default()
    }
}

#[test]
fn names_are_kept_for_the_next_run() {
    let program = Program::build(&["-Wl,--build-id=sha1"]);
    check_frames(&program.look_in(program.module(), caching(&program)).0);
    // Without any file; and with one that is of another build.
    std::fs::remove_file(&program.path).unwrap();
    let (frames, source, problems) = program.look_in(program.module(), caching(&program));
    check_frames(&frames);
    assert_eq!(source, Source::DebugInfo);
    assert!(problems.is_empty(), "{problems:?}");
    let mut other = program.module();
    other.build_id.as_mut().unwrap()[0] ^= 1;
    assert_eq!(program.look_in(other, caching(&program)).0, []);
    // Addresses that were not asked for then: the files are opened again, the rest is as it was.
    let again = Program::build(&["-Wl,--build-id=sha1"]);
    let mut symbols = Symbolizer::searching(caching(&program));
    let mut module = program.module();
    module.candidates = vec![again.path.clone()];
    symbols.set_modules(vec![module]);
    check_frames(&symbols.resolve(BASE + program.mark + 1).frames);
    assert!(!symbols.resolve(BASE + program.mark + 2).frames.is_empty());
}

#[test]
fn names_without_debug_information_are_not_kept() {
    let program = Program::build(&["-Wl,--build-id=sha1"]);
    let id = program.build_id.clone().unwrap();
    let rest: String = id[1..].iter().map(|b| format!("{b:02x}")).collect();
    let place = format!("root/usr/lib/debug/.build-id/{:02x}/{rest}.debug", id[0]);
    let debug = program.folder.join(&place);
    std::fs::create_dir_all(debug.parent().unwrap()).unwrap();
    let to = debug.to_str().unwrap();
    tool("objcopy", &["--only-keep-debug", program.str(), to]);
    let hidden = program.folder.join("hidden");
    std::fs::rename(&debug, &hidden).unwrap();
    tool("strip", &["--strip-debug", program.str()]);
    let (_, source, _) = program.look_in(program.module(), caching(&program));
    assert_eq!(source, Source::Symbols);
    // The debug file comes later.
    std::fs::rename(&hidden, &debug).unwrap();
    let (frames, source, _) = program.look_in(program.module(), caching(&program));
    check_frames(&frames);
    assert_eq!(source, Source::DebugInfo);
}

/// A Rust program: this one.
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
    let mut symbols = Symbolizer::default();
    symbols.set_modules(vec![module]);
    let location = symbols.resolve(address + 1);
    let last = location.frames.last().unwrap();
    assert_eq!(last.function.as_deref(), Some("files::own_functions"));
    assert!(last.file.as_deref().unwrap().ends_with("tests/files.rs"));
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
        "/x.debug is not the debug file meant: checksum 00000001, wanted 00000002"
    );
}
