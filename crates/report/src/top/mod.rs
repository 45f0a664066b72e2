//! What `top` shows: a board that is fed with samples and keys, and the screen that it is drawn on.

mod board;
mod names;
mod screen;

pub use board::{Action, Board, BoardRow, Named, Sample, Sort};
pub use names::Names;
pub use screen::draw;
