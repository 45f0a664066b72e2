//! When two runs have the same call stack: by its functions, not by addresses, lines or files. Two builds compare, under
//! whatever names their files go. Everything that compares runs joins their stacks by this.

use crate::{Profile, StackFrame};

/// The code that a frame is in. A frame without a name is its module and offset, which holds within one build.
fn code_of(frame: &StackFrame) -> String {
    match (&frame.function, &frame.module, &frame.offset) {
        // Files are called otherwise in another build: libx.so.1.2, libx.so.1.3.
        (Some(function), _, _) => function.clone(),
        (None, Some(module), Some(offset)) => format!("{module}+{offset}"),
        _ => frame.address.clone(),
    }
}

/// Code of all frames of a profile.
pub(crate) struct Code(Vec<String>);

impl Code {
    pub fn of(profile: &Profile) -> Code {
        let frames = profile.frames.iter();
        Code(frames.map(|frame| code_of(&frame.frame)).collect())
    }

    /// Returns what identifies a stack in any run.
    pub fn stack(&self, profile: &Profile, stack: u32) -> Vec<String> {
        let frames = profile.known_frames(stack).iter();
        frames.map(|&frame| self.frame(frame).to_owned()).collect()
    }

    pub fn frame(&self, frame: u32) -> &str {
        &self.0[frame as usize]
    }
}
