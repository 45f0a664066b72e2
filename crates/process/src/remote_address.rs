//! Addresses in the memory of another process.

use std::fmt;
use std::ops::Add;

/// Address (avma) in the memory of another process, as opposed to a length, a value read there, or an address in this
/// process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemoteAddress(pub u64);

/// The addition wraps: the address, the number of bytes or both may come from the other process.
impl Add<u64> for RemoteAddress {
    type Output = RemoteAddress;

    fn add(self, bytes: u64) -> RemoteAddress {
        RemoteAddress(self.0.wrapping_add(bytes))
    }
}

impl fmt::Display for RemoteAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
