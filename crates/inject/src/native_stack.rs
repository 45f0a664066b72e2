//! Whether a thread is on the stack that it was created with.
//!
//! The first remote call finds no memory of ours in the target: the signal frame goes below the
//! red zone of the thread's own stack. That memory is free on a native stack (a signal handler
//! would use it too), but may belong to anybody below the stack of a coroutine.

use crate::Registers;
use crate::maps::Mapping;

/// Wanted below rsp; the frame takes 1 to 12 KiB of it, by vector state.
const ROOM_BYTES: u64 = 32 * 1024;

/// Where the frame may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// Below rsp, mapped already.
    Mapped,
    /// Below rsp on the main thread's stack, which the kernel extends.
    Grows,
}

/// `Err` with the reason if the thread is not on its native stack or near the end of it.
pub(crate) fn room(mappings: &[Mapping], tid: i32, registers: &Registers) -> Result<Room, String> {
    let rsp = registers.rsp;
    let Some(stack) = mappings
        .iter()
        .find(|m| m.writable && (m.start_avma..m.end_avma).contains(&rsp))
    else {
        return Err(format!("thread {tid} has no known stack at {rsp:#x}"));
    };
    if stack.name == "[stack]" {
        return Ok(Room::Grows);
    }
    // glibc and musl keep the thread control block, which fs points to, at the upper end of the
    // stack mapping, also on a stack given by pthread_attr_setstack.
    if !(rsp..stack.end_avma).contains(&registers.fs_base) {
        return Err(format!(
            "thread {tid} is on a stack of its own making at {rsp:#x} (coroutine or signal stack)"
        ));
    }
    if rsp - stack.start_avma < ROOM_BYTES {
        return Err(format!(
            "thread {tid} is near the end of its stack at {rsp:#x}"
        ));
    }
    Ok(Room::Mapped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_native_stacks_have_room() {
        let stack = |start_avma, end_avma, name: &str| Mapping {
            start_avma,
            end_avma,
            executable: false,
            writable: true,
            file_offset: 0,
            inode: 0,
            name: name.to_owned(),
        };
        let mappings = [
            stack(0x10_0000, 0x20_0000, ""),
            stack(0x70_0000, 0x72_0000, "[stack]"),
        ];
        let at = |rsp, fs_base| {
            let mut registers = crate::regs::zeroed();
            (registers.rsp, registers.fs_base) = (rsp, fs_base);
            room(&mappings, 1, &registers)
        };
        assert_eq!(at(0x70_0800, 0), Ok(Room::Grows));
        assert_eq!(at(0x1f_0000, 0x1f_f700), Ok(Room::Mapped));
        assert!(at(0x10_1000, 0x1f_f700).is_err(), "near the end");
        assert!(at(0x1f_0000, 0x1e_0000).is_err(), "not above rsp");
        assert!(at(0x1f_0000, 0x30_0000).is_err(), "elsewhere");
        assert!(at(0x30_0000, 0x30_0100).is_err(), "not mapped");
    }
}
