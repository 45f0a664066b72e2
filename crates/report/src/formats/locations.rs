//! Frames of a call stack, grouped by address: an address and the functions inlined at it form one
//! location.

use crate::Profile;

/// Returns the frames of each address of a call stack, innermost first. All but the last frame of
/// an address are inlined.
pub(super) fn locations<'a>(
    profile: &'a Profile,
    frames: &'a [u32],
) -> impl Iterator<Item = &'a [u32]> {
    let mut rest = frames;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let is_inlined = |&&index: &&u32| {
            let frame = profile.frames.get(index as usize);
            frame.is_some_and(|f| f.frame.inlined)
        };
        let inlined = rest.iter().take_while(is_inlined).count();
        let (here, callers) = rest.split_at((inlined + 1).min(rest.len()));
        rest = callers;
        Some(here)
    })
}
