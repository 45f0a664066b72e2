//! The hook's description of itself, and the arguments and results of its entry points.

use super::shared_struct::shared_struct;

/// "MEMHOOK description", as stored in the hook: two words that occur nowhere else, [`HookDescription::magic`].
pub const DESCRIPTION_MAGIC: [u64; 2] = [0x3d1e_57a9_b60c_42f8, 0x9bc4_706f_18e3_ad25];
/// Version of [`HookDescription`]. Fields are only added, at its end; 2 has [`HookDescription::emitting_wrappers`].
pub const DESCRIPTION_VERSION: u32 = 2;

shared_struct! {
    /// A loaded hook's description of itself. A program that finds the description in a process, such as another
    /// version of memhook-rs, learns which function each of the hook's wrappers calls. The description is found by its
    /// magic number and its own address in the hook's data.
    apart HookDescription {
        /// Magic number: [`DESCRIPTION_MAGIC`].
        magic: [u64; 2],
        /// Address of this description (avma).
        own_address: u64,
        /// Version: [`DESCRIPTION_VERSION`].
        version: u32,
        /// Number of hooked functions.
        functions: u32,
        /// Number of wrappers of a function, each with its own original.
        variants: u32,
        /// Number of tables of wrappers, without the emitting wrappers: a reader of version 1 accepts at most two.
        tables: u32,
        /// Address (avma) of the wrappers, `u64[functions][variants]`.
        wrappers: u64,
        /// Address (avma) of the wrappers for selective tracing, in the same form.
        selective_wrappers: u64,
        /// Address (avma) of the originals, `u64[functions][variants]`, 0 for none.
        originals: u64,
        /// Address (avma) of the gate, a page that a fork wipes: u32 epoch, u32 last epoch, u64 owner.
        gate: u64,
        /// Address (avma) of the hook's pointer to its region.
        region: u64,
        /// Address (avma) of the wrappers that notify listeners, in the form of `wrappers`. Since version 2.
        emitting_wrappers: u64,
    }
}

/// Offset in the gate of a u32, one of [`gate_birth`].
pub const GATE_BIRTH_OFFSET: u64 = 16;

/// Progress of a forked child until it is traced. The value is in the gate, so each child begins with the first value.
pub mod gate_birth {
    /// The child has called no hooked function yet.
    pub const UNDECIDED: u32 = 0;
    /// The child is claiming a region.
    pub const UNDER_WAY: u32 = 1;
    /// The child records to its own region, or an attacher has given it one.
    pub const DONE: u32 = 2;
    /// The child has found no region.
    pub const DECLINED: u32 = 3;
}

/// Offset, from the gate, of `u64[MOST_SPARES]`: addresses (avma) of mapped regions that forked children may claim; a 0
/// ends the list. The list is in private memory after the page that a fork wipes. So a child has the list as it was at
/// the fork, and all regions in the list are mapped in the child.
pub const SPARES_BEHIND_GATE: u64 = 4096;
/// Maximum number of regions in that list.
pub const MOST_SPARES: usize = 64;

shared_struct! {
    /// A word of the target to exchange: an argument of `memhook_exchange`.
    apart Exchange {
        /// Address of the word (avma), 8-byte aligned.
        address: u64,
        /// Expected value of the word.
        from: u64,
        /// New value of the word.
        to: u64,
        /// PROT_* bits of its page.
        protection: u32,
        /// One of [`slot_state`], filled in by the hook: `RESTORED`, `CHANGED` or `REFUSED`.
        state: u32,
    }
}

/// Value for the loader's count in `memhook_exchange` that accepts any count.
pub const ANY_LOADER_COUNT: u64 = u64::MAX;

/// Results of the hook's entry points other than counts.
pub mod hook_error {
    /// The region is not of this version.
    pub const NOT_OUR_REGION: i64 = -1;
    /// A forked child could inherit the gate page's contents, so that tracing would not be safe.
    pub const NO_WIPE_ON_FORK: i64 = -2;
    /// Modules were unloaded since the attacher read the list: nothing was exchanged.
    pub const STALE: i64 = -3;
    /// The loader's list was changing: nothing was exchanged.
    pub const NO_LOADER: i64 = -4;
}
