//! Stop a thread, call functions in it, load the hook: the only crate that uses ptrace.
