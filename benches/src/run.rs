//! How this run of a benchmark was asked for.

use std::path::{Path, PathBuf};

/// `target/criterion`, wherever Cargo puts its output: also where our own files go.
pub fn output_folder() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::env::var_os("CRITERION_HOME").map_or_else(
        || target.unwrap_or(workspace.join("target")).join("criterion"),
        PathBuf::from,
    )
}

/// Returns true if each round runs only once, to see that it works: `cargo test --benches`, not `cargo bench`.
pub fn is_test() -> bool {
    let has = |wanted| std::env::args().any(|argument| argument == wanted);
    !has("--bench") || has("--test")
}
