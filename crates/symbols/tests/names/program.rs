//! A small C++ program with a marked place in it.

use memhook_symbols::{Frame, ModuleFile, SearchPath, Source, Symbolizer};
use object::{Object, ObjectSymbol};
use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

pub const BASE: u64 = 0x5555_0000_0000;

/// A temporary directory that contains a program.
pub struct Program {
    pub directory: PathBuf,
    pub path: PathBuf,
    pub mark: u64,
    pub build_id: Option<Vec<u8>>,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

pub fn tool(name: &str, args: &[&str]) {
    let status = Command::new(name).args(args).status();
    assert!(status.unwrap().success(), "{name} {args:?}");
}

impl Program {
    pub fn build(flags: &[&str]) -> Program {
        Program::of("marks.cc", flags)
    }

    /// Builds a source that contains a mark.
    pub fn of(source: &str, flags: &[&str]) -> Program {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory =
            std::env::temp_dir().join(format!("memhook-symbols-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("marks");
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/programs")
            .join(source);
        let mut args = vec!["-g", "-O2", source.to_str().unwrap(), "-o"];
        args.push(path.to_str().unwrap());
        args.extend(flags);
        tool("c++", &args);
        let bytes = std::fs::read(&path).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let mark = file.symbol_by_name("mark_inner").unwrap().address();
        let build_id = file.build_id().unwrap().map(<[u8]>::to_vec);
        Program {
            directory,
            path,
            mark,
            build_id,
        }
    }

    pub fn str(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// Moves the debug information to `debug` in the directory.
    pub fn split(&self, debug: &str) -> PathBuf {
        let debug = self.directory.join(debug);
        std::fs::create_dir_all(debug.parent().unwrap()).unwrap();
        let to = debug.to_str().unwrap();
        tool("objcopy", &["--only-keep-debug", self.str(), to]);
        tool("strip", &["--strip-all", self.str()]);
        debug
    }

    pub fn module(&self) -> ModuleFile {
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

    /// Returns the frames at the mark, their source, and refused files.
    pub fn look(&self, module: ModuleFile, roots: &[&Path]) -> (Vec<Frame>, Source, Vec<String>) {
        let roots: Vec<_> = roots.iter().map(|r| r.to_path_buf()).collect();
        self.look_in(module, roots.into())
    }

    pub fn look_in(
        &self,
        module: ModuleFile,
        search: SearchPath,
    ) -> (Vec<Frame>, Source, Vec<String>) {
        let mut symbols = Symbolizer::new(search);
        symbols.set_modules(vec![module]);
        // The mark is the address of the call, and the next byte stands for the return address.
        let location = symbols.resolve(BASE + self.mark + 1);
        assert_eq!(location.module.as_deref(), Some("marks"));
        assert_eq!(location.svma, self.mark);
        let source = symbols.sources().next().unwrap();
        let problems = source.problems.iter().map(ToString::to_string).collect();
        (location.frames, source.source, problems)
    }
}

pub fn check_frames(frames: &[Frame]) {
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
