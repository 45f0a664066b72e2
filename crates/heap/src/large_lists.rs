//! Lists with a word for each block, which are read in random order: in huge pages where the kernel has them. With small
//! ones, nearly each access waits for the page tables too.

/// An empty list with room for so many.
pub(crate) fn with_room<T>(count: usize) -> Vec<T> {
    let mut list = Vec::with_capacity(count);
    prefer_huge_pages(list.spare_capacity_mut());
    list
}

/// A list of so many of these.
pub(crate) fn filled<T: Clone>(count: usize, value: T) -> Vec<T> {
    let mut list = with_room(count);
    list.resize(count, value);
    list
}

#[cfg(target_arch = "x86_64")]
fn prefer_huge_pages<T>(memory: &mut [T]) {
    /// Smaller ones are not worth the system call.
    const LARGE_BYTES: usize = 4 << 20;
    if size_of_val(memory) >= LARGE_BYTES {
        memhook_inject::prefer_huge_pages(memory);
    }
}

/// Snapshots of other machines are searched with what pages there are.
#[cfg(not(target_arch = "x86_64"))]
fn prefer_huge_pages<T>(_: &mut [T]) {}
