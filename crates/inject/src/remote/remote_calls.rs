//! Many calls of one function in a row by the held thread, without a stop between the calls.
//!
//! The loop is part of the stub (`scratch.rs`). If this process is killed, the thread finishes the loop and goes home.

use std::time::{Duration, Instant};

use crate::audit::{self, Act};
use crate::held::Held;
use crate::scratch::Scratch;
use crate::{Error, Registers, clock};
use memhook_process::RemoteAddress;

/// Time after which a call that waits for a lock is abandoned. It is short, because a thread of the target waits.
const LOCK_DEADLINE: Duration = Duration::from_millis(200);

impl Held {
    /// Maximum number of calls in one [`Held::call_each`].
    pub const MAX_CALLS: usize = (Scratch::DATA_BYTES / 8) as usize;

    /// Calls a function of the target once with each of the arguments, in order. Stops at the time `until`, or when all
    /// calls are done. Makes at most [`Held::MAX_CALLS`] calls. Returns the number of calls, which is at least one.
    ///
    /// After an error, the number is unknown. A call that waits for a lock is abandoned after 200 ms
    /// ([`Error::CallTimeout`]).
    pub fn call_each(
        &mut self,
        function: RemoteAddress,
        arguments: &[u64],
        until: Instant,
    ) -> Result<usize, Error> {
        self.call_each_by(function, arguments, until, |held, registers| {
            held.run_to_the_end(function, registers, LOCK_DEADLINE)
        })
    }

    /// Like [`Held::call_each`], for a function that must not be abandoned half-way, because it may hold one lock while
    /// it waits for another. If the calls are not done after `patience`, the thread finishes them and goes home without
    /// us ([`Error::CallGoesOn`]).
    pub fn call_each_to_its_end(
        &mut self,
        function: RemoteAddress,
        arguments: &[u64],
        until: Instant,
        patience: Duration,
    ) -> Result<usize, Error> {
        self.call_each_by(function, arguments, until, |held, registers| {
            held.run_unabandoned(function, registers, patience)
        })
    }

    fn call_each_by(
        &mut self,
        function: RemoteAddress,
        arguments: &[u64],
        until: Instant,
        run: impl FnOnce(&mut Held, &Registers) -> Result<u64, Error>,
    ) -> Result<usize, Error> {
        let arguments = &arguments[..arguments.len().min(Self::MAX_CALLS)];
        if arguments.is_empty() {
            return Ok(0);
        }
        self.prepare_calls()?;
        let scratch = self.scratch()?;
        let bytes: Vec<u8> = arguments.iter().flat_map(|a| a.to_le_bytes()).collect();
        self.write(scratch.data(), &bytes)?;
        let mut registers = self.call_registers()?;
        registers.rip = scratch.each_entry().0;
        registers.r12 = scratch.data().0;
        registers.r13 = (scratch.data() + bytes.len() as u64).0;
        registers.r14 = function.0;
        let rate = self.target.clock.rate();
        let time = until.saturating_duration_since(Instant::now());
        let counts = rate as f64 * time.as_secs_f64() * 1e3;
        registers.r15 = clock::count().saturating_add(counts as u64);
        let stopped = run(self, &registers);
        // After an error the number is unknown: all calls may have been made.
        let count = stopped.as_ref().map_or(arguments.len(), |stopped| {
            (stopped.wrapping_sub(scratch.data().0) / 8) as usize
        });
        audit::note_as(self.pid, || Act::Call {
            function: function.0,
            calls: count,
            arguments: arguments[..count.min(arguments.len())].to_vec(),
        });
        stopped.map(|_| count)
    }
}
