//! Unwind tables that an earlier run has kept give the same backtraces as freshly compiled ones.

use memhook_tests::programs::Folder;
use memhook_tests::run_with;
use std::path::PathBuf;

/// Allocates below many functions of a program and a library that nobody here built.
const SCRIPT: &str = "declare -A a; for i in {1..300}; do a[$i]=$((i * i)); done; b=(\"${!a[@]}\"); unset a; f() { local c=${b[*]}; [[ $c =~ 7 ]]; }; f; printf -v d %s x; case $d in x) ;; esac";

fn entries(caches: &str) -> Vec<PathBuf> {
    let directory = PathBuf::from(caches).join("memhook-rs/unwind-1");
    let found = std::fs::read_dir(directory).into_iter().flatten();
    found.map(|entry| entry.expect("an entry").path()).collect()
}

#[test]
fn backtraces_do_not_depend_on_kept_tables() {
    let folder = Folder::new("kept-tables");
    // Of one length: the environment is among what the program allocates.
    let (caches, none) = (folder.path("caches"), folder.path("a-file"));
    std::fs::write(&none, "no directory").expect("a file");
    let recording = folder.path("run.mhk");
    let stacks = |caches: &str| {
        let variables = [("XDG_CACHE_HOME", caches)];
        let _ = std::fs::remove_file(&recording);
        let program = ["/bin/bash", "--norc", "-c", SCRIPT];
        let run = ["run", "-o", &recording, "--depth", "40", "--"];
        let (code, _, errors) = run_with(&[&run[..], &program].concat(), &variables);
        assert_eq!(code, 0, "{errors}");
        let report = ["report", &recording, "-f", "folded", "--no-symbol-cache"];
        let (code, text, errors) = run_with(&report, &[]);
        assert_eq!(code, 0, "{errors}");
        assert!(text.lines().count() > 20, "{text}");
        text
    };
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
