//! Distribution programs under load.
