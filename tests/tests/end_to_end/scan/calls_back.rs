//! Allocators that call hooks of the program. memhook-rs releases none of their blocks, because the
//! program could hold the lock that such a hook takes.

use memhook_tests::{Target, build_target, run};

fn keeps_blocks(flags: &[&str], why: &str) {
    let mut target = Target::start(&build_target("calls_back", flags), &[]);
    let pid = target.pid().to_string();
    let options = ["--reclaim", "--yes", "--twice", "10ms"];
    let arguments = [&["scan", &pid], &options[..]].concat();
    let (code, out, err) = run(&arguments);
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    assert!(err.contains("free() could call"), "{err}");
    assert!(err.contains(why), "{err}");
    target.go();
    target.expect("done");
    target.send("u");
    target.expect("usable");
    assert!(target.finish().success());
}

#[test]
fn a_delete_hook_of_gperftools() {
    for library in ["-ltcmalloc", "-ltcmalloc_minimal"] {
        keeps_blocks(
            &["-DTCMALLOC", library],
            "a hook is set (MallocHook_AddDeleteHook)",
        );
    }
}

#[test]
fn extent_hooks_of_jemalloc() {
    keeps_blocks(&["-DJEMALLOC", "-ljemalloc"], "extent_hooks");
}

#[test]
fn a_deferred_free_of_mimalloc() {
    keeps_blocks(
        &["-DMIMALLOC", "-l:libmimalloc.so.2"],
        "mi_register_deferred_free",
    );
}
