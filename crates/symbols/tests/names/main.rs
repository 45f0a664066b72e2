//! From a module's files to names.

#[macro_use]
extern crate memhook_tests;

mod downloads;
mod files;
mod hostile;
mod kept;
mod program;
mod shared;
