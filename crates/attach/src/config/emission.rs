//! Where the hook is to come from that records nothing and tells listeners instead.

/// From memory, as for an attach, or from a file.
#[derive(Clone, Debug, Default)]
pub struct Emission {
    pub(crate) file: Option<FilePlace>,
}

/// A file as the target finds it.
#[derive(Clone, Debug)]
pub(crate) struct FilePlace {
    /// Its directory.
    pub folder: String,
    /// Its name there.
    pub name: String,
    /// Its inode number.
    pub inode: u64,
}

impl Emission {
    /// From memory.
    pub fn from_memory() -> Emission {
        Emission::default()
    }
}
