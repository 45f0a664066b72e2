//! The frame descriptions (FDEs) of a section, one after the other.

use gimli::{
    BaseAddresses, CieOrFde, CommonInformationEntry, FrameDescriptionEntry, Reader, UnwindOffset,
    UnwindSection,
};
use std::collections::HashMap;

/// Calls `each` with every FDE that can be parsed, until it returns false. A CIE is parsed once instead of for each of
/// its FDEs.
pub(crate) fn each_description<S, R>(
    frames: &S,
    bases: &BaseAddresses,
    mut each: impl FnMut(&FrameDescriptionEntry<R>) -> bool,
) where
    R: Reader<Offset = usize>,
    S: UnwindSection<R>,
    S::Offset: UnwindOffset<R::Offset>,
{
    let mut cies: HashMap<usize, CommonInformationEntry<R>> = HashMap::new();
    let mut entries = frames.entries(bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let fde = partial.parse(|section, bases, offset| {
            let key = UnwindOffset::into(offset);
            if let Some(cie) = cies.get(&key) {
                return Ok(cie.clone());
            }
            let cie = section.cie_from_offset(bases, offset)?;
            cies.insert(key, cie.clone());
            Ok(cie)
        });
        if fde.is_ok_and(|fde| !each(&fde)) {
            return;
        }
    }
}
