//! The modules, frames and stacks of a profile, added on demand. Recordings and running traces
//! share this code.

use crate::named_run::{frames_at, is_cut};
use crate::{Profile, ProfileFrame, ProfileModule};
use memhook_symbols::Symbolizer;
use rustc_hash::FxHashMap;

/// The tables that a profile's sites refer to by index.
pub(crate) struct ProfileTables {
    depth: u32,
    cut_root: Option<u32>,
    modules: Vec<ProfileModule>,
    frames: Vec<ProfileFrame>,
    stacks: Vec<Vec<u32>>,
    /// Frames by address.
    of_address: FxHashMap<u64, Vec<u32>>,
}

impl ProfileTables {
    /// Creates tables without stacks, for a run that collected at most `depth` frames (0 if
    /// unknown). An address belongs to the first module that contains it.
    pub fn new(modules: Vec<ProfileModule>, depth: u32) -> ProfileTables {
        ProfileTables {
            depth,
            cut_root: None,
            modules,
            frames: Vec::new(),
            stacks: Vec::new(),
            of_address: FxHashMap::default(),
        }
    }

    /// Adds a stack of return addresses, innermost first, and returns its index.
    pub fn push(&mut self, addresses: &[u64], truncated: bool, symbols: &Symbolizer) -> u32 {
        let mut frames = Vec::with_capacity(addresses.len());
        for &address in addresses {
            frames.extend_from_slice(self.address(address, symbols));
        }
        let last = frames[frames.len().saturating_sub(2)..].iter();
        let last: Vec<_> = last
            .map(|&frame| self.frames[frame as usize].frame.clone())
            .collect();
        if self.depth > 0 && is_cut(addresses.len(), truncated, self.depth, &last) {
            frames.push(self.cut_root());
        }
        self.stacks.push(frames);
        self.stacks.len() as u32 - 1
    }

    /// Moves the tables into a profile.
    pub fn fill(self, profile: Profile) -> Profile {
        Profile {
            depth: self.depth,
            modules: self.modules,
            frames: self.frames,
            stacks: self.stacks,
            cut_root: self.cut_root,
            ..profile
        }
    }

    fn cut_root(&mut self) -> u32 {
        let frames = &mut self.frames;
        *self.cut_root.get_or_insert_with(|| {
            frames.push(ProfileFrame::cut_root());
            frames.len() as u32 - 1
        })
    }

    fn address(&mut self, address: u64, symbols: &Symbolizer) -> &[u32] {
        let (frames, modules) = (&mut self.frames, &self.modules);
        self.of_address.entry(address).or_insert_with(|| {
            // The call ends at the byte before the return address.
            let inside = |m: &ProfileModule| (m.start..m.end).contains(&address.wrapping_sub(1));
            let module = modules.iter().position(inside).map(|at| at as u32);
            let first = frames.len() as u32;
            let found = frames_at(symbols, address).into_iter();
            frames.extend(found.map(|frame| ProfileFrame {
                address,
                module,
                frame,
            }));
            (first..frames.len() as u32).collect()
        })
    }
}

/// Writes a build-id in the form of profiles.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
