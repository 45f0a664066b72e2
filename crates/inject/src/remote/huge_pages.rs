//! Large copies of a target's memory, which are read in no particular order.

/// Asks for huge pages (madvise(2), MADV_HUGEPAGE) for memory of ours that is about to be filled: with
/// small ones, nearly every access to another block waits for the page tables too. It has no effect where
/// there are no huge pages.
pub fn prefer_huge_pages(bytes: &mut [u8]) {
    const PAGE_BYTES: usize = 4096;
    let first = bytes.as_ptr().align_offset(PAGE_BYTES);
    let Some(whole) = bytes.get_mut(first..) else {
        return;
    };
    let length = whole.len() / PAGE_BYTES * PAGE_BYTES;
    // SAFETY: the range is memory of ours, borrowed for the call; the advice does not change its contents.
    unsafe { libc::madvise(whole.as_mut_ptr().cast(), length, libc::MADV_HUGEPAGE) };
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
        prefer_huge_pages(&mut []);
    }
}
