//! Telling a return address from another word, by the instruction before it.

/// The length of the longest call instruction: `call *disp32(base,index)`.
pub(crate) const CALL_BYTES: usize = 7;

/// Whether `code` ends with `call rel32` (E8) or `call r/m64` (FF /2) of matching length.
pub(crate) fn ends_with_call(code: &[u8; CALL_BYTES]) -> bool {
    if code[2] == 0xe8 {
        return true;
    }
    (0..=CALL_BYTES - 2).any(|start| {
        let modrm = code[start + 1];
        code[start] == 0xff && modrm & 0x38 == 0x10 && {
            let sib_base = code.get(start + 2).map(|sib| sib & 7);
            let bytes = match (modrm >> 6, modrm & 7) {
                (0, 4) if sib_base == Some(5) => 7,
                (0, 4) => 3,
                (0, 5) => 6,
                (0, _) | (3, _) => 2,
                (1, 4) => 4,
                (1, _) => 3,
                (_, 4) => 7,
                _ => 6,
            };
            start + bytes == CALL_BYTES
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_encodings_are_known() {
        // call rel32; call *%rax; call *0x10(%rax); call *0x0(%rip); call *0x12345678(%rax,%rbx,8)
        assert!(ends_with_call(&[0x90, 0x90, 0xe8, 1, 2, 3, 4]));
        assert!(ends_with_call(&[0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd0]));
        assert!(ends_with_call(&[0x90, 0x90, 0x90, 0x90, 0xff, 0x50, 0x10]));
        assert!(ends_with_call(&[0x90, 0xff, 0x15, 0, 0, 0, 0]));
        assert!(ends_with_call(&[0xff, 0x94, 0xd8, 0x78, 0x56, 0x34, 0x12]));
        // jmp *%rax; mov; call *%rax followed by nop
        assert!(!ends_with_call(&[0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xe0]));
        assert!(!ends_with_call(&[0x48, 0x89, 0xe5, 0x48, 0x89, 0xc7, 0x90]));
        assert!(!ends_with_call(&[0x90, 0x90, 0x90, 0x90, 0xff, 0xd0, 0x90]));
    }
}
