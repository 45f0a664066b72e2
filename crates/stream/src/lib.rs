//! Consume the event rings of a traced process.
