//! What leads a held thread home if this process is killed: written before the thread is made to do
//! anything.

use std::os::unix::fs::FileExt;

use crate::gadgets::Gadgets;
use crate::held::Held;
use crate::native_stack::Room;
use crate::scratch::Scratch;
use crate::signal_frame::{self, State};
use crate::{Error, memory, regs, restart, restarted};

/// What leads the thread home if we are killed: frames on its own stack, and code to enter them by.
#[derive(Clone, Copy)]
pub(crate) struct WayHome {
    /// Frame that leads home.
    pub home: u64,
    /// Frame that unmaps the scratch memory first.
    pub unmapping: u64,
    pub gadgets: Gadgets,
}

impl Held {
    /// Writes the signal frames if they are not there yet.
    pub(crate) fn way_home(&mut self) -> Result<WayHome, Error> {
        if let Some(way) = self.way_home {
            return Ok(way);
        }
        let pid = self.pid;
        let gadgets = self
            .gadgets
            .filter(|gadgets| gadgets.are_intact(&self.mem))
            .ok_or(Error::NoSyscallInstruction { pid })?;
        let room = self.room.clone().map_err(|reason| Error::NoSafeThread {
            pid,
            waited: self.held_for(),
            reason,
        })?;
        if regs::has_shadow_stack(self.tid) {
            return Err(Error::ShadowStack { pid, tid: self.tid });
        }
        let original = if restart::is_restarted(&self.saved) {
            restarted::original(self.tid, &self.saved, &self.waits_in, |address, into| {
                self.mem.read_exact_at(into, address).is_ok()
            })
        } else {
            None
        };
        let arguments = [self.place.address(), Scratch::BYTES, 0, 0, 0, 0];
        let mut unmap = self.syscall_registers(libc::SYS_munmap, arguments);
        unmap.rip = gadgets.syscall;
        let frames = signal_frame::build(
            &State {
                registers: &restart::unattended(&self.saved, self.call_lasts(), original),
                mask: self.saved_mask,
            },
            &State {
                registers: &unmap,
                mask: self.remote_mask(),
            },
            &self.saved_extended,
            gadgets.restorer,
        );
        match room {
            // Extends the stack mapping; process_vm_writev does not since Linux 6.5.
            Room::Grows => self.write(frames.call, &frames.bytes)?,
            // Respects page protection, should the mapping have changed.
            Room::Mapped => memory::write_writable(pid, frames.call, &frames.bytes)?,
        }
        // In the address space looked at before the stop, not that of a program started since.
        let mut there = vec![0u8; frames.bytes.len()];
        self.read(frames.call, &mut there)?;
        if there != frames.bytes {
            return Err(self.is_gone());
        }
        let way = WayHome {
            home: frames.home,
            unmapping: frames.call,
            gadgets,
        };
        self.way_home = Some(way);
        Ok(way)
    }
}
