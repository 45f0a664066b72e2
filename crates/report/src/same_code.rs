//! Equality of call stacks between two runs: by functions, not by addresses, lines or files. So two
//! builds can be compared even if their files have different names. Every comparison of runs uses
//! this equality.

use crate::{Profile, StackFrame};

/// Returns the identity of a frame's code. For a frame without a name, it consists of module and
/// offset, which are valid within one build.
fn code_of(frame: &StackFrame) -> String {
    match (&frame.function, &frame.module, &frame.offset) {
        // Another build may rename files, for example from libx.so.1.2 to libx.so.1.3.
        (Some(function), _, _) => function.clone(),
        (None, Some(module), Some(offset)) => format!("{module}+{offset}"),
        _ => frame.address.clone(),
    }
}

/// Identity of the code of each frame of a profile.
pub(crate) struct Code(Vec<String>);

impl Code {
    pub fn of(profile: &Profile) -> Code {
        let frames = profile.frames.iter();
        Code(frames.map(|frame| code_of(&frame.frame)).collect())
    }

    /// Returns the identity of a stack in any run.
    pub fn stack(&self, profile: &Profile, stack: u32) -> Vec<String> {
        let frames = profile.known_frames(stack).iter();
        frames.map(|&frame| self.frame(frame).to_owned()).collect()
    }

    pub fn frame(&self, frame: u32) -> &str {
        &self.0[frame as usize]
    }
}
