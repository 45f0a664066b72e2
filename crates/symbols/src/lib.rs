//! Address to module, function, file:line and inlined frames, offline.
