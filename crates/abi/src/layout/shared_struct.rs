//! Structures that both sides share.

/// Location of a structure: a part of the region, or elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// From the attacher to the hook. Only the attacher can write it.
    Guide,
    /// From the hook to the attacher: numbers, which descendants of the target may write too.
    Report,
    /// Not in the region.
    Apart,
}

/// One field of a shared structure, as the C++ generator needs it.
pub struct Field {
    /// Field name, the same on both sides.
    pub name: &'static str,
    /// Rust type as written.
    pub rust_type: &'static str,
    /// Byte offset.
    pub offset: usize,
    /// Its documentation.
    pub docs: &'static str,
}

/// Address in the target (avma) that the hook calls, reads or writes. A report must not contain one.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address(pub u64);

/// Types that a report may consist of. [`Address`] is not one of them.
pub(crate) trait Number {}
macro_rules! numbers {
    ($($ty:ty)*) => { $(impl Number for $ty {})* };
}
numbers!(u8 u16 u32 u64 std::sync::atomic::AtomicU32 std::sync::atomic::AtomicU64);
impl<T: Number, const N: usize> Number for [T; N] {}

macro_rules! shared_struct {
    ($(#[$meta:meta])* $part:ident $name:ident { $($(#[$fmeta:meta])* $field:ident : $ty:ty,)* }) => {
        $(#[$meta])*
        #[repr(C)]
        pub struct $name { $($(#[$fmeta])* pub $field: $ty,)* }
        impl $name {
            /// Part of the region.
            pub const PART: $crate::Part = $crate::layout::shared_struct::shared_part!($part $($ty)*);
            /// Field names, types and offsets, for the C++ header.
            pub const FIELDS: &'static [$crate::Field] = &[$($crate::Field {
                name: stringify!($field),
                rust_type: stringify!($ty),
                offset: core::mem::offset_of!($name, $field),
                docs: concat!($(stringify!($fmeta)),*),
            },)*];
        }
    };
}

/// Returns the part. In a report, a field that is not a number does not compile.
macro_rules! shared_part {
    (guide $($ty:ty)*) => { $crate::Part::Guide };
    (apart $($ty:ty)*) => { $crate::Part::Apart };
    (report $($ty:ty)*) => {{
        const fn number<T: $crate::layout::shared_struct::Number>() {}
        $(number::<$ty>();)*
        $crate::Part::Report
    }};
}

pub(crate) use {shared_part, shared_struct};
