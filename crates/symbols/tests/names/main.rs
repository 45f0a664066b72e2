//! From a module's files to names.

mod downloads;
mod files;
mod kept;
mod program;
