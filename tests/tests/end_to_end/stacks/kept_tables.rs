//! Unwind tables cached by an earlier run give exactly the backtraces of freshly compiled tables.

use memhook_tests::programs::Folder;
use memhook_tests::{build_target, not_run_here, run_with};
use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Allocates in many functions of a third-party program and library.
const SCRIPT: &str = "declare -A a; for i in {1..300}; do a[$i]=$((i * i)); done; b=(\"${!a[@]}\"); unset a; f() { local c=${b[*]}; [[ $c =~ 7 ]]; }; f; printf -v d %s x; case $d in x) ;; esac";

fn entries(caches: &str) -> Vec<PathBuf> {
    let directory = PathBuf::from(caches).join("memhook-rs/unwind-1");
    let found = std::fs::read_dir(directory).into_iter().flatten();
    found.map(|entry| entry.expect("an entry").path()).collect()
}

#[test]
fn backtraces_do_not_depend_on_kept_tables() {
    let folder = Folder::new("kept-tables");
    // Paths of equal length, because the program allocates memory for its environment.
    let (caches, none) = (folder.path("caches"), folder.path("a-file"));
    std::fs::write(&none, "no directory").expect("a file");
    let recording = folder.path("run.mhk");
    let stacks_with = |caches: &str, options: &[&str]| {
        let variables = [("XDG_CACHE_HOME", caches)];
        let _ = std::fs::remove_file(&recording);
        let program = ["--", "/bin/bash", "--norc", "-c", SCRIPT];
        let run = ["run", "-o", &recording, "--depth", "40"];
        let (code, _, errors) = run_with(&[&run[..], options, &program].concat(), &variables);
        assert_eq!(code, 0, "{errors}");
        let report = ["report", &recording, "-f", "folded"];
        let (code, text, errors) = run_with(&report, &[("XDG_CACHE_HOME", &*none)]);
        assert_eq!(code, 0, "{errors}");
        assert!(text.lines().count() > 20, "{text}");
        // The length of the parent's process id differs between runs.
        let lines = text.lines().filter(|line| !line.contains("set_ppid"));
        lines.collect::<Vec<_>>().join("\n")
    };
    let stacks = |caches: &str| stacks_with(caches, &[]);
    let compiled = stacks(&none);
    assert_eq!(stacks(&caches), compiled, "nothing was kept yet");
    let kept = entries(&caches);
    assert!(
        kept.len() >= 2,
        "of the program and the C library: {kept:?}"
    );
    let sizes = || -> Vec<u64> {
        entries(&caches)
            .iter()
            .map(|e| e.metadata().unwrap().len())
            .collect()
    };
    let whole = sizes();
    assert_eq!(stacks(&caches), compiled, "kept");
    for entry in &kept {
        let bytes = std::fs::read(entry).expect("an entry");
        std::fs::write(entry, &bytes[..bytes.len() / 2]).expect("ours");
    }
    assert_eq!(stacks(&caches), compiled, "cut short");
    assert_eq!(sizes(), whole, "made good again");
}

/// A file system that does not answer, like one whose server is gone.
struct DeadFileSystem {
    place: CString,
    /// The FUSE device, whose requests are never read.
    _device: File,
}

impl DeadFileSystem {
    /// Mounts the file system. Returns `None` if the kernel has no FUSE, or does not permit the
    /// mount.
    fn new(place: &str) -> Option<DeadFileSystem> {
        std::fs::create_dir(place).expect("a directory");
        let mut options = File::options();
        let device = options.read(true).write(true).open("/dev/fuse").ok()?;
        let data = format!(
            "fd={},rootmode=40700,user_id=0,group_id=0",
            device.as_raw_fd()
        );
        let (data, place) = (CString::new(data).unwrap(), CString::new(place).unwrap());
        let kind = c"fuse".as_ptr();
        // SAFETY: all arguments are zero-terminated strings that outlive the call.
        let made = unsafe { libc::mount(kind, place.as_ptr(), kind, 0, data.as_ptr().cast()) };
        let _device = device;
        (made == 0).then_some(DeadFileSystem { place, _device })
    }
}

impl Drop for DeadFileSystem {
    fn drop(&mut self) {
        // SAFETY: a zero-terminated string.
        unsafe { libc::umount2(self.place.as_ptr(), libc::MNT_DETACH) };
    }
}

/// Checks that neither the start of a program, nor the end of its trace, nor the names of a leak, nor
/// the exit of memhook-rs wait for this file system forever.
#[test]
fn a_cache_directory_that_never_answers() {
    let folder = Folder::new("dead-cache");
    let Some(dead) = DeadFileSystem::new(&folder.path("dead")) else {
        return not_run_here("FUSE cannot be mounted here");
    };
    let caches = format!("{}/caches", dead.place.to_string_lossy());
    for program in [&["/bin/true"][..], &["/bin/sh", "-c", "exec /bin/true"]] {
        let gate = [&["gate", "--follow-fork", "--"], program].concat();
        let (code, _, text) = run_with(&gate, &[("XDG_CACHE_HOME", &caches)]);
        assert_eq!(code, 0, "{text}");
        assert!(text.contains("PASSED"), "{text}");
    }
    let (code, text) = leaking(&caches);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("gate_cases.cc:"), "{text}");
}

/// Runs the gate on a program that leaks.
fn leaking(caches: &str) -> (i32, String) {
    let cases = build_target("gate_cases", &["-O1", "-g"]);
    let gate = ["gate", "--", &cases.to_string_lossy(), "plain"];
    let (code, _, text) = run_with(&gate, &[("XDG_CACHE_HOME", caches)]);
    (code, text)
}

/// The gate finds the names of a build that it has seen before without reading debug information.
#[test]
fn a_leak_has_the_same_names_in_the_next_run() {
    let folder = Folder::new("kept-names");
    let caches = folder.path("caches");
    let mut first = None;
    let mut uses = Vec::new();
    for _ in 0..3 {
        let report = leaking(&caches);
        // What else is reachable depends on how the hook was loaded.
        let leaks = report.1.split("\n\n").next().expect("the leaks").to_owned();
        assert!(leaks.contains("gate_cases.cc:"), "{}", report.1);
        assert_eq!(*first.get_or_insert(leaks.clone()), leaks);
        let entries = std::fs::read_dir(format!("{caches}/memhook-rs/names-3"));
        let entries = entries.expect("names are kept").map(|entry| {
            let entry = entry.expect("an entry");
            let found = entry.metadata().expect("its metadata");
            (
                entry.file_name(),
                found.ino(),
                found.modified().expect("a time"),
            )
        });
        let mut entries: Vec<_> = entries.collect();
        entries.sort();
        uses.push(entries);
    }
    // The program's own debug information is complete. An entry that is written has a new inode, and one that is used
    // is young.
    let [_, second, third] = &uses[..] else {
        panic!("{uses:?}");
    };
    assert!(!second.is_empty() && second.len() == third.len());
    for (before, after) in second.iter().zip(third) {
        assert_eq!((&before.0, before.1), (&after.0, after.1));
        assert!(before.2 < after.2, "{uses:?}");
    }
}
