//! Modules whose loading was not announced by a traced dlopen call. They were loaded by a call that began before its
//! slot was patched, by the C library for its own use (iconv_open(3), getpwnam(3)), or through a pointer from dlsym(3).
//! Calls from these modules are not seen until their slots are patched. The coverage report says so.

use crate::error::Error;
use crate::session::Session;
use std::time::Duration;

/// Shortest time between two looks.
const SHORTEST: Duration = Duration::from_secs(1);
/// Longest time between two looks. A look reads all mappings of the process.
const LONGEST: Duration = Duration::from_secs(60);

/// Finds unannounced modules in two looks, because a thread announces a module only when its dlopen returns.
pub(super) struct Unannounced {
    /// Number of announcements before the last look, and the modules that the look found.
    suspected: Option<(u32, Vec<u64>)>,
    pause: Duration,
    next: Duration,
}

impl Default for Unannounced {
    fn default() -> Unannounced {
        Unannounced {
            suspected: None,
            pause: SHORTEST,
            next: SHORTEST,
        }
    }
}

impl Unannounced {
    /// Returns true if a look is due.
    pub fn is_due(&self, now: Duration) -> bool {
        now >= self.next
    }

    /// Looks for new modules. Reports the modules that the previous look found, unless a module has been announced
    /// since then. Returns true if there are new modules, whose slots are not patched yet.
    pub fn look(&mut self, session: &mut Session, now: Duration) -> Result<bool, Error> {
        self.pause = (self.pause * 2).min(LONGEST);
        self.next = now + self.pause;
        let announced = session.region().module_requests();
        if let Some((before, modules)) = self.suspected.take()
            && before == announced
        {
            session.note_unannounced(&modules);
        }
        let modules = session.look_for_new_modules()?;
        if modules.is_empty() {
            return Ok(false);
        }
        self.pause = SHORTEST;
        self.suspected = Some((announced, modules));
        Ok(true)
    }

    /// Takes the final look, after which no module can be announced.
    pub fn look_at_end(&mut self, session: &mut Session) {
        let found = session.look_for_new_modules().unwrap_or_default();
        let (_, suspected) = self.suspected.take().unwrap_or_default();
        session.note_unannounced(&[found, suspected].concat());
    }
}
