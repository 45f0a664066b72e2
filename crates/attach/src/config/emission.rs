//! Source of a hook that records nothing and reports to listeners instead.

/// Source of an emitting hook: memory, as for an attach, or a file.
#[derive(Clone, Debug, Default)]
pub struct Emission {
    pub(crate) file: Option<FilePlace>,
}

/// Location of a file, as the target sees it.
#[derive(Clone, Debug)]
pub(crate) struct FilePlace {
    /// Directory of the file.
    pub folder: String,
    /// Name of the file in its directory.
    pub name: String,
    /// Inode number of the file.
    pub inode: u64,
}

impl Emission {
    /// Returns an emission whose hook is loaded from memory.
    pub fn from_memory() -> Emission {
        Emission::default()
    }
}
