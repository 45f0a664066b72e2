//! Screen of `top`: a board that takes samples, keys and names, and the code that draws it.

mod board;
mod keys;
mod layout;
mod names;
mod past;
mod pictures;
mod rows;
mod screen;
mod terminal;
#[cfg(test)]
mod tests;
mod tree;

pub use board::{Among, Board, Reaction, Resident, Sample, SourceLine};
pub use names::Names;
use screen::draw;
pub use terminal::Screen;
