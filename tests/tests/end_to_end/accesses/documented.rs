//! Tests the command lines in docs/scores.md for instrumenting the reader's own program.

use memhook_tests::access_runtime;
use memhook_tests::programs::{Folder, installed};
use std::path::Path;
use std::process::{Command, Stdio};

/// Debian's clang comes without the runtime of its sanitizers, so the documented line must not need
/// it.
#[test]
fn the_documented_line_for_clang_builds_a_program_without_clangs_runtime() {
    let folder = Folder::new("documented");
    let object = access_runtime().join("memhook_access.o");
    std::fs::create_dir(folder.path("access")).expect("made");
    std::fs::copy(object, folder.path("access/memhook_access.o")).expect("copied");
    let program =
        "#include <stdlib.h>\nint main(void) { int* p = malloc(40); p[3] = 4; return p[3] - 4; }\n";
    std::fs::write(folder.path("app.c"), program).expect("written");
    let resources = Command::new(installed("clang"))
        .arg("-print-resource-dir")
        .output();
    let resources = resources.expect("it runs").stdout;
    let resources = String::from_utf8(resources).expect("UTF-8");
    let headers = Path::new(resources.trim()).join("include");
    std::fs::create_dir(folder.path("resources")).expect("made");
    std::os::unix::fs::symlink(headers, folder.path("resources/include")).expect("linked");
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/scores.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let page = page.replace("\\\n", " ");
    let mut lines = page.lines().filter(|line| line.starts_with("clang "));
    let line = lines.next().expect("a line for clang");
    let built = Command::new("sh")
        .args(["-ec", &format!("{line} -resource-dir resources")])
        .current_dir(folder.path(""))
        .stdin(Stdio::null())
        .status();
    assert!(built.expect("a shell").success(), "{line}");
    let ran = Command::new(folder.path("app")).status();
    assert!(ran.expect("it runs").success());
}
