//! The leak gate.

mod action;
mod allocators;
mod cases;
mod killed_threads;
mod possible;
mod processes;
mod real_project;
mod recordings;
mod verdicts;
