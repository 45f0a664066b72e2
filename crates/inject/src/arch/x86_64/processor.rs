//! Processor features that our code needs and that a thread may have disabled for itself.

use crate::Error;
use crate::held::Held;
use crate::way_home::WayHome;
use memhook_process::is_filtered;

/// Offset of the XSAVE header, whose first word lists the components present (Intel SDM volume 1, 13.4.2).
const HEADER: usize = 512;
/// Number of the component with the protection keys.
const PKRU: u32 = 9;

impl Held {
    /// Fails if the thread may not use the time stamp counter. The check precedes all of our code in the thread,
    /// because that code uses the counter. Only the thread itself can ask the kernel about this.
    pub(crate) fn check_processor(&mut self, way: WayHome) -> Result<(), Error> {
        let Some(scratch) = self.work.scratch else {
            return Ok(());
        };
        if !self.work.filters_suspended && is_filtered(self.pid, self.tid) {
            // A filter might kill the thread for this call.
            return Ok(());
        }
        let ask = [libc::PR_GET_TSC as u64, scratch.words().0];
        let asked = self.bare_syscall(way.unmapping, "prctl", libc::SYS_prctl, &ask);
        let mut mode = [0; 4];
        match asked {
            Ok(_) => self.read(scratch.words(), &mut mode)?,
            // A seccomp filter refuses the call, or might kill the thread for it.
            Err(Error::RemoteSyscall { .. } | Error::CallIsFiltered { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
        match i32::from_le_bytes(mode) {
            libc::PR_TSC_SIGSEGV => Err(Error::NoTimeStampCounter {
                pid: self.pid,
                tid: self.tid,
            }),
            _ => Ok(()),
        }
    }
}

/// Returns `Err` with the reason if the thread may not read or write ordinary memory at the moment, for example between
/// two wrpkru instructions of a program that isolates parts of itself (pkeys(7)). Our code could not do so in that
/// thread either.
pub(crate) fn check_keys(tid: i32, extended: &[u8]) -> Result<(), String> {
    // Offset of the component in the standard form of the area. SAFETY: cpuid only reads, and every processor of this
    // architecture has it.
    let offset = std::arch::x86_64::__cpuid_count(13, PKRU).ebx as usize;
    if denies_all(extended, offset) {
        return Err(format!(
            "thread {tid} has disabled its access to ordinary memory (protection key 0)"
        ));
    }
    Ok(())
}

/// Returns true if reading or writing is denied for key 0, the key of all memory that has no other key.
fn denies_all(extended: &[u8], offset: usize) -> bool {
    let word = |at: usize| Some(u32::from_le_bytes(*extended.get(at..)?.first_chunk()?));
    let is_there = offset > HEADER && word(HEADER).is_some_and(|set| set & 1 << PKRU != 0);
    is_there && word(offset).is_some_and(|keys| keys & 3 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_key_0_matters() {
        let area = |components: u32, keys: u32| {
            let mut area = vec![0u8; 2700];
            area[HEADER..HEADER + 4].copy_from_slice(&components.to_le_bytes());
            area[2688..2692].copy_from_slice(&keys.to_le_bytes());
            area
        };
        // Initial value for every program on Linux.
        assert!(!denies_all(&area(0x2e7, 0x5555_5554), 2688));
        assert!(denies_all(&area(0x2e7, 0x5555_5555), 2688));
        assert!(denies_all(&area(0x2e7, 0x5555_5556), 2688));
        assert!(
            !denies_all(&area(0x0e7, 3), 2688),
            "as at the start of the processor"
        );
        assert!(!denies_all(&area(0x2e7, 3), 0), "no such component");
        assert!(!denies_all(&[0; 100], 2688));
    }
}
