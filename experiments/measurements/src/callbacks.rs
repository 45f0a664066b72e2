//! Compiler flags for programs that report their reads and writes.

/// Flags from `pkg-config --variable=gcc_flags memhook-access`, and flags that prevent inlining of calls of the C
/// library.
pub const CALLBACKS: [&str; 8] = [
    "-fsanitize=kernel-address",
    "-fno-builtin",
    "--param",
    "asan-instrumentation-with-call-threshold=0",
    "--param",
    "asan-stack=0",
    "--param",
    "asan-globals=0",
];
