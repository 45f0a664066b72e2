//! What the hook says of itself, and what its entry points take and return.

use super::shared_struct::shared_struct;

/// "MEMHOOK description", as the hook holds it: two words that occur nowhere else, [`HookDescription::magic`].
pub const DESCRIPTION_MAGIC: [u64; 2] = [0x3d1e_57a9_b60c_42f8, 0x9bc4_706f_18e3_ad25];
/// Of [`HookDescription`]. Fields are only added, at its end; 2 has [`HookDescription::emitting_wrappers`].
pub const DESCRIPTION_VERSION: u32 = 2;

shared_struct! {
    /// What a loaded hook says of itself, so that whoever finds it in a process, another version of
    /// memhook-rs included, knows which function is behind each of its wrappers. It is found by its
    /// magic number and its own address in the hook's data.
    apart HookDescription {
        /// [`DESCRIPTION_MAGIC`].
        magic: [u64; 2],
        /// Where it is (avma).
        own_address: u64,
        /// [`DESCRIPTION_VERSION`].
        version: u32,
        /// Hooked functions.
        functions: u32,
        /// Wrappers of a function, each with an original of its own.
        variants: u32,
        /// Tables of wrappers, without those that emit: a reader of version 1 believes no more than two.
        tables: u32,
        /// Address (avma) of `u64[functions][variants]`: the wrappers.
        wrappers: u64,
        /// The same: those for selective tracing.
        selective_wrappers: u64,
        /// Address (avma) of `u64[functions][variants]`: the originals, 0 where there is none.
        originals: u64,
        /// Address (avma) of the gate, a page that a fork wipes: u32 epoch, u32 last epoch, u64 owner.
        gate: u64,
        /// Address (avma) of the hook's pointer to its region.
        region: u64,
        /// As `wrappers`: those that tell listeners. Since version 2.
        emitting_wrappers: u64,
    }
}

/// Offset in the gate of a u32, one of [`gate_birth`].
pub const GATE_BIRTH_OFFSET: u64 = 16;

/// What has become of a fork child's wish to be traced from its birth; in the gate, so each child begins with the first.
pub mod gate_birth {
    /// It has called no hooked function yet.
    pub const UNDECIDED: u32 = 0;
    /// It is claiming a region.
    pub const UNDER_WAY: u32 = 1;
    /// It records into a region of its own, or an attacher has given it one.
    pub const DONE: u32 = 2;
    /// It has found none.
    pub const DECLINED: u32 = 3;
}

/// Offset, from the gate, of `u64[MOST_SPARES]`: where regions are mapped (avma) that fork children may
/// claim; a 0 ends the list. Behind the page that a fork wipes, in private memory: a child has the list as it was
/// when it was forked, and so only what is mapped in it.
pub const SPARES_BEHIND_GATE: u64 = 4096;
/// Most regions in that list.
pub const MOST_SPARES: usize = 64;

shared_struct! {
    /// A word of the target that is to be exchanged: an argument of `memhook_exchange`.
    apart Exchange {
        /// Where (avma), 8-byte aligned.
        address: u64,
        /// What it must hold.
        from: u64,
        /// What it shall hold.
        to: u64,
        /// PROT_* bits of its page.
        protection: u32,
        /// One of [`slot_state`], filled in by the hook: `RESTORED`, `CHANGED` or `REFUSED`.
        state: u32,
    }
}

/// As what the loader should count, in `memhook_exchange`: anything.
pub const ANY_LOADER_COUNT: u64 = u64::MAX;

/// What the hook's entry points return besides counts.
pub mod hook_error {
    /// The region is not one of this version.
    pub const NOT_OUR_REGION: i64 = -1;
    /// The gate page cannot be kept from fork children, so that tracing would not be safe.
    pub const NO_WIPE_ON_FORK: i64 = -2;
    /// Modules were unloaded since the attacher looked: nothing was exchanged.
    pub const STALE: i64 = -3;
    /// The loader could not be asked to keep still: nothing was exchanged.
    pub const NO_LOADER: i64 = -4;
}
