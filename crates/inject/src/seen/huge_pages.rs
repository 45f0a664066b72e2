//! Huge pages for large copies of a target's memory, which are read in random order.

/// Requests huge pages (madvise(2), MADV_HUGEPAGE) for memory of ours that is about to be filled. With small pages,
/// nearly every access to a different block also has to wait for a page table walk. The request has no effect if there
/// are no huge pages.
pub fn prefer_huge_pages<T>(memory: &mut [T]) {
    const PAGE_BYTES: usize = 4096;
    let first = memory.as_mut_ptr().cast::<u8>();
    let before = first.align_offset(PAGE_BYTES);
    let Some(left) = size_of_val(memory).checked_sub(before) else {
        return;
    };
    let length = left / PAGE_BYTES * PAGE_BYTES;
    let first = first.wrapping_add(before);
    // SAFETY: the range is memory of ours, borrowed for the call; the advice does not change its contents.
    unsafe { libc::madvise(first.cast(), length, libc::MADV_HUGEPAGE) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_stay() {
        let mut bytes = vec![7u8; 5 << 20];
        prefer_huge_pages(&mut bytes);
        assert!(bytes.iter().all(|&b| b == 7));
        prefer_huge_pages(&mut bytes[..3]);
        prefer_huge_pages::<u8>(&mut []);
        let mut numbers = Vec::with_capacity(1 << 20);
        prefer_huge_pages(numbers.spare_capacity_mut());
        numbers.extend(0..1u32 << 20);
        prefer_huge_pages(&mut numbers);
        assert!(numbers.into_iter().eq(0..1 << 20));
    }
}
