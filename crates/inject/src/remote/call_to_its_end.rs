//! Calls of functions that hold one lock while they wait for another, and so must not be abandoned.

use crate::held::Held;
use crate::remote_call::Outcome;
use crate::scratch::Scratch;
use crate::{Error, Registers};
use memhook_process::RemoteAddress;
use std::time::{Duration, Instant};

/// Time between two checks of a call that has not returned.
const STEP: Duration = Duration::from_millis(100);

impl Held {
    /// Like [`Held::call_with_data`], for a function that must not be abandoned half-way. If the function has not
    /// returned after `patience`, the thread completes it and resumes its own work without us, as if this process had
    /// been killed ([`Error::CallGoesOn`]). The thread can then no longer be used.
    ///
    /// Panics if `data` is longer than [`crate::MAX_CALL_DATA`].
    pub fn call_to_its_end(
        &mut self,
        function: RemoteAddress,
        data: &mut [u8],
        patience: Duration,
        args: impl FnOnce(RemoteAddress) -> Vec<u64>,
    ) -> Result<u64, Error> {
        assert!(
            data.len() <= Scratch::DATA_BYTES as usize,
            "{} bytes",
            data.len()
        );
        self.prepare_calls()?;
        let at = self.scratch()?.data();
        self.write(at, data)?;
        let registers = self.function_registers(function, &args(at))?;
        let result = self.run_unabandoned(function, &registers, patience)?;
        self.read(at, data)?;
        Ok(result)
    }

    /// Runs foreign code from these registers. If the code has not ended after `patience`, lets the thread finish it
    /// alone.
    pub(crate) fn run_unabandoned(
        &mut self,
        function: RemoteAddress,
        registers: &Registers,
        patience: Duration,
    ) -> Result<u64, Error> {
        let begin = Instant::now();
        self.note_call(function, registers);
        let mut outcome = self.operate_answering(registers, patience)?;
        loop {
            let waited = begin.elapsed();
            match outcome {
                Outcome::Done(result) => return Ok(result),
                Outcome::Unfinished(_) if waited >= patience => {
                    // With its current registers, the thread completes the call and then returns to its own work, so
                    // they stay unchanged.
                    self.work.went_home = true;
                    return Err(Error::CallGoesOn {
                        pid: self.pid(),
                        function,
                        waited,
                    });
                }
                Outcome::Unfinished(_) => outcome = self.wait_until_done_answering(STEP)?,
            }
        }
    }
}
