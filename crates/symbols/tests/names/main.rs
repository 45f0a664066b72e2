//! Lookup of names in the files of a module.

#[macro_use]
extern crate memhook_tests;

mod downloads;
mod files;
mod hostile;
mod kept;
mod program;
mod shared;
