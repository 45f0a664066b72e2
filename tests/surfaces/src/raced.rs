//! The shared region during writes by the target.

use crate::Input;
use crate::region::{Attacher, SHARED, a_write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Stops the other thread when dropped, even if this thread panics.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// The target repeatedly writes the first part of the input, while the rest controls the attacher.
pub fn changed_meanwhile(bytes: &[u8]) {
    let mut input = Input(bytes);
    let flags = input.u16();
    let mut target = Input(input.part());
    let mut writes = Vec::new();
    while !target.is_empty() && writes.len() < 64 {
        writes.push(a_write(&mut target));
    }
    SHARED.with(|shared| {
        shared.start(flags);
        let (file, has_ended) = (&shared.file, AtomicBool::new(false));
        let mut attacher = Attacher::of(&shared.region, false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !has_ended.load(Relaxed) && !writes.is_empty() {
                    for (at, bytes) in &writes {
                        file.write_all_at(bytes, *at as u64).expect("written");
                    }
                }
            });
            let _ended = Ended(&has_ended);
            let mut acts = 0;
            while !input.is_empty() && acts < 64 {
                attacher.act(&mut input);
                acts += 1;
            }
        });
        attacher.end();
    });
}
