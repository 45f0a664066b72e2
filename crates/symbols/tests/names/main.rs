//! From a module's files to names.

mod downloads;
mod files;
mod hostile;
mod kept;
mod program;
mod shared;
