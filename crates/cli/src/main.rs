//! The memhook-rs command.
#[allow(dead_code)]
mod hook_object;

fn main() {}
