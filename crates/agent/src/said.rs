//! Messages of the agent on standard error, where journald(8) or a container runtime keeps them: one line an event.

use memhook_foreign::visible;

/// Prints one line. It may contain names of processes and files, which are foreign bytes.
pub fn say(text: &str) {
    use std::io::Write;
    // Nobody can be told that nobody can be told.
    let _ = writeln!(std::io::stderr(), "memhook-rs: {}", visible(text));
}

/// An error with all its sources, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}
