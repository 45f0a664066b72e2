//! What the agent says on standard error, where journald(8) or a container runtime keeps it: one line for each event.

use memhook_foreign::visible;

/// Says something, in one line. Names of processes and files may be in it, whose bytes are anybody's.
pub fn say(text: &str) {
    use std::io::Write;
    // Nobody can be told that nobody can be told.
    let _ = writeln!(std::io::stderr(), "memhook-rs: {}", visible(text));
}

/// An error with all that it came from, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}
