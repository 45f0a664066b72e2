//! Leaked blocks grouped by their kind, their size, and the kind of block through which they are
//! reachable.

use memhook_heap::{BlockTable, Leak, Snapshot, Types};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::cmp::Reverse;

/// Leaked blocks of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct LeakGroup {
    /// Usable bytes of the blocks.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// True if nothing points to the blocks. Otherwise other leaked blocks lead to them.
    pub direct: bool,
    /// C++ class, or a description of the contents: `text`, `pointers`, `zeros`, `data`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The call stack that allocated the blocks, if it is known.
    pub stack: Option<Vec<String>>,
    /// Usable bytes of each block.
    pub block_bytes: u64,
    /// For direct leaks: bytes that are reachable only through the blocks.
    pub held_bytes: u64,
    /// For direct leaks: number of blocks that are reachable only through the blocks.
    pub held_blocks: u64,
    /// For indirect leaks: the kind of the direct leak that leads to the blocks.
    pub owner: Option<String>,
    /// Address of one of the blocks.
    pub example: String,
    /// First bytes of that block.
    pub peek: String,
}

#[derive(Default)]
struct Group {
    bytes: u64,
    blocks: u64,
    held_bytes: u64,
    held_blocks: u64,
    example: u32,
}

/// Groups leaked blocks by their class or contents, by their size, and by the direct leak that
/// leads to them.
pub(super) fn group(
    snapshot: &Snapshot,
    blocks: &BlockTable,
    leaks: &[Leak],
    types: &mut Types,
) -> Vec<LeakGroup> {
    let mut groups: FxHashMap<(String, u64, Option<u32>), Group> = FxHashMap::default();
    // Kinds of the owners, as small numbers.
    let mut kinds: Vec<(String, u64)> = Vec::new();
    let mut kind_numbers: FxHashMap<(String, u64), u32> = FxHashMap::default();
    let mut owners: FxHashMap<u32, u32> = FxHashMap::default();
    for leak in leaks.iter().filter(|l| l.is_direct()) {
        let key = (
            types.describe(blocks, leak.block),
            blocks.get(leak.block).bytes,
        );
        let number = *kind_numbers.entry(key.clone()).or_insert_with(|| {
            kinds.push(key);
            kinds.len() as u32 - 1
        });
        owners.insert(leak.block, number);
    }
    for leak in leaks {
        let bytes = blocks.get(leak.block).bytes;
        let owner = owners.get(&leak.owner).copied();
        let key = if leak.is_direct() {
            let kind = owner
                .and_then(|k| kinds.get(k as usize))
                .cloned()
                .unwrap_or_default();
            (kind.0, kind.1, None)
        } else {
            let kind = types.describe(blocks, leak.block);
            (kind, bytes, owner)
        };
        if !leak.is_direct()
            && let Some((kind, bytes_each)) = owner.and_then(|k| kinds.get(k as usize))
        {
            let held = groups.entry((kind.clone(), *bytes_each, None)).or_default();
            held.held_bytes += bytes;
            held.held_blocks += 1;
        }
        let group = groups.entry(key).or_default();
        if group.blocks == 0 {
            group.example = leak.block;
        }
        group.bytes += bytes;
        group.blocks += 1;
    }
    let mut list: Vec<LeakGroup> = groups
        .into_iter()
        .map(|((kind, block_bytes, owner), group)| {
            let example = blocks.get(group.example);
            let bytes = snapshot.bytes(example.address, example.bytes.min(32));
            LeakGroup {
                bytes: group.bytes,
                blocks: group.blocks,
                direct: owner.is_none(),
                kind,
                stack: None,
                block_bytes,
                held_bytes: group.held_bytes,
                held_blocks: group.held_blocks,
                owner: owner.and_then(|k| Some(kinds.get(k as usize)?.0.clone())),
                example: format!("{:#x}", example.address),
                peek: peek(bytes.unwrap_or(&[])),
            }
        })
        .collect();
    list.sort_by_key(|g| {
        (
            Reverse(g.bytes + g.held_bytes),
            Reverse(g.direct),
            g.block_bytes,
            g.kind.clone(),
        )
    });
    list
}

/// Writes the first bytes as hexadecimal words and as text.
fn peek(bytes: &[u8]) -> String {
    let bytes = &bytes[..bytes.len().min(32)];
    let hex: Vec<String> = bytes
        .chunks(8)
        .map(|word| word.iter().map(|b| format!("{b:02x}")).collect())
        .collect();
    let text: String = bytes
        .iter()
        .map(|&b| {
            if (32..127).contains(&b) {
                b as char
            } else {
                '.'
            }
        })
        .collect();
    format!("{} |{text}|", hex.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_are_shown_as_words_and_as_text() {
        assert_eq!(peek(b"ab\0").as_str(), "616200 |ab.|");
    }
}
