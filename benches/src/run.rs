//! Mode and output folder of this benchmark run.

use std::path::{Path, PathBuf};

/// Returns the folder `target/criterion` of Cargo's output. The benchmarks also write their own
/// files there.
pub fn output_folder() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::env::var_os("CRITERION_HOME").map_or_else(
        || target.unwrap_or(workspace.join("target")).join("criterion"),
        PathBuf::from,
    )
}

/// Returns true under `cargo test --benches`, where each round runs only once as a check that it
/// works.
pub fn is_test() -> bool {
    let has = |wanted| std::env::args().any(|argument| argument == wanted);
    !has("--bench") || has("--test")
}
