//! Structures that both sides know.

/// One field of a shared structure, as the C++ generator needs it.
pub struct Field {
    /// Field name, the same on both sides.
    pub name: &'static str,
    /// Rust type as written.
    pub rust_type: &'static str,
    /// Byte offset.
    pub offset: usize,
}

macro_rules! shared_struct {
    ($(#[$meta:meta])* $name:ident { $($(#[$fmeta:meta])* $field:ident : $ty:ty,)* }) => {
        $(#[$meta])*
        #[repr(C)]
        pub struct $name { $($(#[$fmeta])* pub $field: $ty,)* }
        impl $name {
            /// Field names, types and offsets, for the C++ header.
            pub const FIELDS: &'static [Field] = &[$(Field {
                name: stringify!($field),
                rust_type: stringify!($ty),
                offset: core::mem::offset_of!($name, $field),
            },)*];
        }
    };
}

pub(crate) use shared_struct;
