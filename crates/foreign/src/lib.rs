//! Handling of input that others can influence: a target, its files, an output directory.
//!
//! Files that a target names are opened as regular files of the target's file system or not at all ([`open_regular`]),
//! and their claimed sizes are compared with the disk space that they occupy ([`Extent`], [`inflate`]). Names are
//! demangled within bounds ([`demangle()`]) and made harmless before they are shown ([`visible`]); [`units`] reads and
//! writes every size and time. Outputs are created by [`OutputFile`], which makes them accessible only to their owner
//! and follows no links, and data for the next run is stored in a [`CacheDirectory`] or an [`OwnDirectory`].
//! [`HttpServer`] answers only permitted clients, and never a page from another site.

mod appended_file;
mod asked_host;
mod bounded_name;
mod cache_directory;
mod demangle;
#[doc(hidden)]
pub mod fuzzing;
mod glob;
mod http_server;
mod inflate;
mod inside_root;
mod itanium;
mod mapped_file;
mod output_error;
mod output_file;
mod output_stream;
mod own_directory;
mod regular_file;
pub mod units;
mod visible;

pub use appended_file::open_appended;
use asked_host::asks_for_us;
pub use cache_directory::{CacheDirectory, user_caches};
pub use demangle::{class_name, demangle, demangle_in_full};
pub use glob::{glob, star_glob};
pub use http_server::{Answer, HttpServer, Request};
pub use inflate::{Compression, inflate};
pub use inside_root::{open_below, open_folder_below};
pub use mapped_file::open_mapped;
pub use output_error::{OutputError, exists_already};
pub use output_file::{
    OutputFile, check_output, is_program, own_name, unnamed_file, unnamed_file_in,
};
pub use own_directory::OwnDirectory;
pub use regular_file::{Extent, is_regular, open_regular, read_exactly, read_start};
pub use units::size_text;
pub use visible::{visible, visible_colored, visible_json, visible_lines};
