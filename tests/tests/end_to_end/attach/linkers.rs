//! Programs and libraries as different linkers lay them out.

use memhook_tests::programs::Folder;
use memhook_tests::{Attacher, Target, build_c_target};
use std::path::{Path, PathBuf};

/// Linkers, and what they are asked for. Of packed relocations (DT_RELR), lld 14 and mold 1.10 make
/// nothing that glibc loads.
const LAYOUTS: &[(&str, &[&str])] = &[
    ("bfd", &["-Wl,-z,separate-code"]),
    ("bfd", &["-Wl,-z,noseparate-code"]),
    ("bfd", &["-Wl,-z,pack-relative-relocs"]),
    ("gold", &["-Wl,--rosegment"]),
    ("gold", &["-Wl,--no-rosegment"]),
    ("lld", &[]),
    ("lld", &["-Wl,--no-rosegment"]),
    ("lld", &["-Wl,-z,separate-code"]),
    ("lld", &["-Wl,-z,separate-loadable-segments"]),
    ("lld", &["-no-pie"]),
    ("mold", &[]),
    ("mold", &["-Wl,-z,separate-code"]),
    ("mold", &["-Wl,-z,noseparate-code"]),
    ("mold", &["-no-pie"]),
];

fn build(linker: &str, flags: &[&str]) -> (PathBuf, PathBuf) {
    let linker = format!("-fuse-ld={linker}");
    let program: Vec<&str> = [&[linker.as_str()], flags].concat();
    let mut library = program.clone();
    library.retain(|flag| *flag != "-no-pie");
    library.extend(["-DLIBRARY", "-shared", "-fPIC"]);
    let [program, library] = [program, library].map(|flags| build_c_target("linked", &flags));
    (program, library)
}

/// How many mappings of a file begin with its first byte.
fn first_pages(target: &Target, file: &Path) -> usize {
    let file = file.to_str().expect("UTF-8");
    let maps = target.maps();
    let of_file = maps.lines().filter(|line| line.ends_with(file));
    of_file.filter(|line| line.contains(" 00000000 ")).count()
}

#[test]
fn each_linkers_programs_and_libraries_are_traced() {
    let folder = Folder::new("linkers");
    for (n, &(linker, flags)) in LAYOUTS.iter().enumerate() {
        let (program, library) = build(linker, flags);
        let late = folder.path(&format!("late-{n}.so"));
        std::fs::copy(&library, &late).expect("a copy of the library");
        let library_path = library.to_str().expect("UTF-8");
        let mut target = Target::start(&program, &[library_path, &late]);
        if matches!(linker, "lld" | "mold") && flags.is_empty() {
            assert!(first_pages(&target, &program) > 1, "{}", target.maps());
            assert!(first_pages(&target, &library) > 1, "{}", target.maps());
        }
        let attacher = Attacher::start(&target, &[]);
        target.go();
        target.expect("done");
        let report = attacher.finish();
        assert!(target.finish().success(), "{linker} {flags:?}");
        for (function, blocks, size) in [
            ("leak_in_program", 7, 96),
            ("leak_in_library", 21, 200),
            ("leak_in_library", 22, 300),
        ] {
            let is_it = |site: &&serde_json::Value| {
                site["stack"][0]["function"] == function && site["bytes"] == blocks * size
            };
            let site = report["sites"]
                .as_array()
                .expect("sites")
                .iter()
                .find(is_it);
            let site = site.unwrap_or_else(|| panic!("{linker} {flags:?}: {report:#}"));
            assert_eq!(site["blocks"], blocks, "{linker} {flags:?}");
        }
    }
}
