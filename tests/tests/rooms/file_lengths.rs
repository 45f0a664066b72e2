//! The limit on file lengths keeps each file to one subject.

use super::root;

/// Maximum number of lines. A file of about 400 lines may have two subjects; a longer file
/// certainly does.
const MOST_LINES: usize = 570;

#[test]
fn no_file_is_too_long() {
    let mut long = Vec::new();
    let mut folders = vec![root().join("hook-cxx"), root().join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a directory") {
            let entry = entry.expect("readable");
            let (path, kind) = (entry.path(), entry.file_type().expect("readable"));
            // The target of a symbolic link is checked separately.
            if kind.is_dir() {
                folders.push(path);
                continue;
            }
            // The generated abi.hpp and lists of test cases may be longer.
            let name = path
                .strip_prefix(root())
                .expect("inside")
                .display()
                .to_string();
            let is_code = kind.is_file() && (name.ends_with(".rs") || name.ends_with(".hpp"));
            if !is_code || name == "hook-cxx/abi.hpp" || name.contains("/tests/") {
                continue;
            }
            let lines = std::fs::read_to_string(&path)
                .expect("text")
                .lines()
                .count();
            if lines > MOST_LINES {
                long.push(name);
            }
        }
    }
    assert!(long.is_empty(), "over {MOST_LINES} lines: {long:?}");
}
