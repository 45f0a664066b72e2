//! Lists with a word for each block. They are read in random order, so they use huge pages where
//! available. With small pages, nearly every access would also wait for the page tables.

/// Returns an empty list with room for `count` elements.
pub(crate) fn with_room<T>(count: usize) -> Vec<T> {
    let mut list = Vec::with_capacity(count);
    prefer_huge_pages(list.spare_capacity_mut());
    list
}

/// Returns a list of `count` equal elements.
pub(crate) fn filled<T: Clone>(count: usize, value: T) -> Vec<T> {
    let mut list = with_room(count);
    list.resize(count, value);
    list
}

fn prefer_huge_pages<T>(memory: &mut [T]) {
    /// Size from which a list is worth the system call.
    const LARGE_BYTES: usize = 4 << 20;
    if size_of_val(memory) >= LARGE_BYTES {
        memhook_inject::prefer_huge_pages(memory);
    }
}
