//! Way home for a held thread: how it returns to its own code if this process is killed. The way home is written before
//! the thread runs any code for us.

use crate::gadgets::Gadgets;
use crate::held::Held;
use crate::native_stack::RESERVED_BYTES;
use crate::scratch::Scratch;
use crate::signal_frame::{self, State};
use crate::{Error, memory, ptrace, regs, restart, restarted, watchdog};
use memhook_process::RemoteAddress;

/// Way home for the thread if we are killed: frames on its own stack, and the code that enters them.
#[derive(Clone, Copy)]
pub(crate) struct WayHome {
    /// Frame that leads home.
    pub home: RemoteAddress,
    /// Frame that unmaps the scratch memory first.
    pub unmapping: RemoteAddress,
    pub gadgets: Gadgets,
}

impl Held {
    /// Writes the mark that identifies the frames to a later attacher, in case this process is killed.
    pub(crate) fn mark_frames(&self) -> Result<(), Error> {
        if let (Some((at, length)), Ok(room)) = (self.work.frames, &self.saved.room) {
            let mut frames = vec![0; length];
            self.read(at, &mut frames)?;
            let (place, mark) = room.mark(at.0, &frames);
            self.write(RemoteAddress(place), &mark)?;
        }
        Ok(())
    }

    /// Writes the signal frames if they are not there yet.
    pub(crate) fn way_home(&mut self) -> Result<WayHome, Error> {
        if let Some(way) = self.work.way_home {
            return Ok(way);
        }
        let pid = self.pid;
        let gadgets = self
            .target
            .gadgets
            .filter(|gadgets| gadgets.are_intact(&self.target.memory))
            .ok_or(Error::NoSyscallInstruction { pid })?;
        let room = self
            .saved
            .room
            .clone()
            .map_err(|reason| Error::NoSafeThread {
                pid,
                waited: self.held_for(),
                reason,
            })?;
        if regs::has_shadow_stack(self.tid) {
            return Err(Error::ShadowStack { pid, tid: self.tid });
        }
        if ptrace::dispatches_calls(self.tid) {
            return Err(Error::CallsDispatched { pid, tid: self.tid });
        }
        let saved = &self.saved;
        let read = |at, into: &mut [u8]| self.target.read(RemoteAddress(at), into).is_ok();
        let entered = restart::on_the_way(&saved.registers, read);
        let registers = entered.unwrap_or(saved.registers);
        let seen = saved.registers.orig_rax as i64;
        let original = restart::is_restarted(&registers)
            .then(|| restarted::original(self.tid, seen, &registers, &saved.waits_in, read))
            .flatten();
        // The stack pointer is set when the frames are built.
        let arguments = [self.work.place.address().0, Scratch::BYTES];
        let stack = RemoteAddress::default();
        let unmap = self.syscall_registers(gadgets.syscall, stack, libc::SYS_munmap, &arguments);
        let frames = signal_frame::build(
            room.range.end,
            &State {
                registers: &restart::unattended(&registers, saved.call_lasts(), original),
                mask: saved.mask,
            },
            &State {
                registers: &unmap,
                mask: self.remote_mask(),
            },
            &saved.extended,
            &gadgets.frame_entry(),
        );
        let lower = RemoteAddress(frames.call);
        if frames.call < room.range.start + RESERVED_BYTES {
            return Err(Error::NoSafeThread {
                pid,
                waited: self.held_for(),
                reason: format!("the vector state of thread {} is too large", self.tid),
            });
        }
        // The mark is written first: a mark without frames shows that nothing else was written.
        let (place, mark) = room.mark(frames.call, &frames.bytes);
        self.write(RemoteAddress(place), &mark)?;
        match room.grows {
            // This write extends the stack mapping. process_vm_writev(2) has not done so since Linux 6.5.
            true => self.write(lower, &frames.bytes)?,
            // This write respects page protection, in case the mapping has changed.
            false => {
                let _kept = watchdog::keep().ok_or_else(|| self.has_gone_home())?;
                memory::write_writable(pid, lower, &frames.bytes)?;
            }
        }
        self.work.frames = Some((lower, frames.bytes.len()));
        // The frames must be in the address space that was examined before the stop, not in the address space of a
        // program that the process has executed since.
        let mut there = vec![0u8; frames.bytes.len()];
        self.read(lower, &mut there)?;
        if there != frames.bytes {
            return Err(self.is_gone());
        }
        let way = WayHome {
            home: RemoteAddress(frames.home),
            unmapping: lower,
            gadgets,
        };
        self.work.way_home = Some(way);
        Ok(way)
    }
}
