//! Output of reports, and the exit codes of their traces.

use crate::exit_code;
use memhook_report::ReportWriter;
use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, Ordering::Relaxed},
};

/// Output of the reports of all traced processes.
pub struct Reports {
    output: Mutex<ReportWriter>,
    pub(super) is_incomplete: AtomicBool,
    /// The highest exit code of a trace that has ended.
    pub(super) code: AtomicU8,
    pub(super) has_gaps: AtomicBool,
}

impl Reports {
    /// Creates the reports for this output.
    pub fn new(output: ReportWriter) -> Arc<Reports> {
        Arc::new(Reports {
            output: Mutex::new(output),
            is_incomplete: AtomicBool::new(false),
            code: AtomicU8::new(exit_code::DONE),
            has_gaps: AtomicBool::new(false),
        })
    }

    pub(super) fn output(&self) -> MutexGuard<'_, ReportWriter> {
        self.output.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Waits until everything is written, and reports errors. An output to which no report was
    /// written stays unchanged. Returns true if everything was written.
    pub fn finish(&self) -> bool {
        let finished = self.output().finish();
        if let Err(error) = &finished {
            eprintln!("memhook-rs: not every report could be written: {error}");
        }
        finished.is_ok()
    }

    /// Returns true if the reader is gone.
    pub fn is_closed(&self) -> bool {
        self.output().is_closed()
    }

    /// Ends the output. Returns the exit code for it and for the traces.
    pub fn exit_code(&self) -> u8 {
        let mut code = self.code.load(Relaxed);
        if !self.finish() || self.is_incomplete() {
            code = code.max(exit_code::BAD_INPUT);
        }
        code
    }

    /// Returns true if a process ran untraced for a time.
    pub fn has_gaps(&self) -> bool {
        self.has_gaps.load(Relaxed)
    }

    /// Records that a requested output was not written.
    pub fn note_incomplete(&self) {
        self.is_incomplete.store(true, Relaxed);
    }

    /// Returns true if a recording is not complete.
    pub fn is_incomplete(&self) -> bool {
        self.is_incomplete.load(Relaxed)
    }
}
