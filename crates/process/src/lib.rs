//! A process seen from outside: mappings, modules, ELF relocations and symbols, threads.
