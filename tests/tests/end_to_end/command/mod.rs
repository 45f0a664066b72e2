//! The command's user interface: help, mistakes, files, pages and terminals.

mod advise;
mod audit;
mod bad_input;
mod charset;
mod documentation;
mod heaptrack;
mod help;
mod hints;
mod kernel_state;
mod log;
mod marks;
mod outputs;
mod recipes;
mod run;
mod run_duration;
mod schemas;
mod targets_by_name;
mod top;
mod top_editor;
mod view;
mod watch;
