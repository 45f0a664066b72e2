//! Call stacks: unwinding, and the names of frames.

mod foreign_names;
mod gdb;
mod kept_tables;
mod made_code;
mod python;
mod python_services;
mod python_switches;
mod spoiled_memos;
mod stack_reference;
mod unwinding;
