//! Layout of the memory that holds pads: a header, a journal of the replaced bytes, and the pads.
//!
//! The memory is complete before any jump leads to it, and does not change after that. The journal is kept in the
//! process itself, so that a later attacher can restore every byte, even in a forked child or if this attacher was
//! killed.

use crate::pad::{Shared, Task};
use crate::thread_block::find_block;
use crate::{Condition, CountsLayout, JUMP_BYTES, Pad, Plan, Refusal, Role};

/// Longest replacement that a journal describes.
pub const LONGEST_PATCH: usize = JUMP_BYTES;

const MAGIC: u64 = u64::from_le_bytes(*b"mhkprobe");
const VERSION: u32 = 1;
const HEADER_BYTES: u64 = 128;
const ENTRY_BYTES: u64 = 24;
const PAGE_BYTES: u64 = 4096;
/// Space for the routine shared by all pads.
const SHARED_CODE_BYTES: u64 = 512;
/// Maximum number of entries; a header that states more is not ours.
const MOST_ENTRIES: u32 = 1 << 20;

/// Replaced code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    /// Address of the bytes (avma).
    pub at: u64,
    /// Original bytes.
    pub original: [u8; LONGEST_PATCH],
    /// New bytes.
    pub jump: [u8; LONGEST_PATCH],
}

/// Header of an area, with the memory that belongs to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AreaHeader {
    /// Process id of the attacher.
    pub attacher: u32,
    /// Number of entries in the journal.
    pub entries: u32,
    /// Size of the area in bytes.
    pub bytes: u64,
    /// Address of the table of threads (avma).
    pub table_at: u64,
    /// Size of the table in bytes.
    pub table_bytes: u64,
    /// Address of the shared memory (avma).
    pub shared_at: u64,
    /// Size of the shared memory in bytes.
    pub shared_bytes: u64,
}

impl AreaHeader {
    /// Number of bytes to read for the header of an area.
    pub const BYTES: usize = HEADER_BYTES as usize;

    fn write(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let words = [
            MAGIC,
            u64::from(VERSION) | u64::from(self.attacher) << 32,
            u64::from(self.entries),
            self.bytes,
            self.table_at,
            self.table_bytes,
            self.shared_at,
            self.shared_bytes,
        ];
        for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        bytes
    }

    /// Reads the header of an area of this version.
    pub fn read(bytes: &[u8]) -> Option<AreaHeader> {
        let words = bytes.as_chunks::<8>().0;
        let word = |n: usize| words.get(n).map(|w| u64::from_le_bytes(*w));
        let header = AreaHeader {
            attacher: (word(1)? >> 32) as u32,
            entries: u32::try_from(word(2)?).ok()?,
            bytes: word(3)?,
            table_at: word(4)?,
            table_bytes: word(5)?,
            shared_at: word(6)?,
            shared_bytes: word(7)?,
        };
        let is_ours = word(0)? == MAGIC && word(1)? as u32 == VERSION;
        (is_ours && header.entries <= MOST_ENTRIES).then_some(header)
    }

    /// Returns the size of the journal after the header, in bytes.
    pub fn journal_bytes(&self) -> usize {
        self.entries as usize * ENTRY_BYTES as usize
    }

    /// Reads the journal, which is after the header.
    pub fn journal(bytes: &[u8]) -> Vec<JournalEntry> {
        let (entries, _) = bytes.as_chunks::<{ ENTRY_BYTES as usize }>();
        entries.iter().map(JournalEntry::read).collect()
    }
}

impl JournalEntry {
    fn write(&self) -> [u8; ENTRY_BYTES as usize] {
        let mut bytes = [0; ENTRY_BYTES as usize];
        bytes[..8].copy_from_slice(&self.at.to_le_bytes());
        bytes[8..8 + LONGEST_PATCH].copy_from_slice(&self.original);
        bytes[16..16 + LONGEST_PATCH].copy_from_slice(&self.jump);
        bytes
    }

    fn read(bytes: &[u8; ENTRY_BYTES as usize]) -> JournalEntry {
        let part = |at: usize| std::array::from_fn(|n| bytes[at + n]);
        JournalEntry {
            at: u64::from_le_bytes(part(0)),
            original: std::array::from_fn(|n| bytes[8 + n]),
            jump: std::array::from_fn(|n| bytes[16 + n]),
        }
    }
}

/// Location in a function at which a jump leads to a pad.
#[derive(Clone, Copy, Debug)]
pub struct AreaFunction<'p> {
    /// Displaced instructions.
    pub plan: &'p Plan,
    /// Load bias of the module.
    pub bias: u64,
    /// Number of the probe.
    pub probe: usize,
    /// Role of the pad.
    pub role: Role,
}

/// Area under construction, to which functions are added one by one.
pub struct AreaPlan<'p> {
    functions: Vec<AreaFunction<'p>>,
    conditions: &'p [Condition],
    /// Address (avma) of the code that examines arguments and stacks.
    hit: u64,
}

/// Bytes of an area, and its pads.
pub struct Area {
    /// All bytes.
    pub bytes: Vec<u8>,
    /// Planned replacements.
    pub journal: Vec<JournalEntry>,
    /// For each function, in the order of addition, its pad or the reason why it has none.
    pub pads: Vec<Result<Pad, Refusal>>,
}

impl<'p> AreaPlan<'p> {
    /// Creates a plan for these functions. Only calls that meet all conditions are counted.
    pub fn new(functions: Vec<AreaFunction<'p>>, conditions: &'p [Condition]) -> AreaPlan<'p> {
        AreaPlan {
            functions,
            conditions,
            hit: 0,
        }
    }

    /// Sets the address of the code that pads call if the layout includes arguments or stacks.
    pub fn calling(self, hit: u64) -> AreaPlan<'p> {
        AreaPlan { hit, ..self }
    }

    fn code_offset(&self) -> u64 {
        (HEADER_BYTES + 16 + self.functions.len() as u64 * ENTRY_BYTES).next_multiple_of(64)
    }

    /// Returns the size of the area in bytes: whole pages.
    pub fn bytes(&self) -> u64 {
        let most = |one: &AreaFunction<'_>| {
            one.role
                .most_bytes(self.conditions.len())
                .next_multiple_of(16)
        };
        let pads: u64 = self.functions.iter().map(most).sum();
        (self.code_offset() + SHARED_CODE_BYTES + pads).next_multiple_of(PAGE_BYTES)
    }

    /// Builds the area for this address (avma).
    pub fn build(
        &self,
        at: u64,
        header: AreaHeader,
        counts: &CountsLayout,
    ) -> Result<Area, Refusal> {
        let mut bytes = vec![0xcc; self.bytes() as usize];
        // The pointer's offset depends on the journal, which has space for all functions.
        let pointer_offset = self.code_offset() - 16;
        let code_offset = self.code_offset();
        let shared = Shared {
            table_pointer: at + pointer_offset,
            find_block: at + code_offset,
            hit_pointer: at + pointer_offset + 8,
        };
        let mut put = |offset: u64, part: &[u8]| {
            bytes[offset as usize..][..part.len()].copy_from_slice(part);
        };
        put(pointer_offset, &header.table_at.to_le_bytes());
        put(pointer_offset + 8, &self.hit.to_le_bytes());
        let find_block = find_block(shared.find_block, shared.table_pointer, counts)?;
        put(code_offset, &find_block);
        let mut next = code_offset + SHARED_CODE_BYTES;
        let (mut journal, mut pads) = (Vec::new(), Vec::new());
        for &AreaFunction {
            plan,
            bias,
            probe,
            role,
        } in &self.functions
        {
            let task = Task {
                plan,
                bias,
                probe,
                role,
                layout: counts,
                conditions: self.conditions,
            };
            let pad = Pad::new(&task, at + next, shared);
            if let Ok(pad) = &pad {
                debug_assert!(pad.code.len() as u64 <= role.most_bytes(self.conditions.len()));
                put(next, &pad.code);
                next = (next + pad.code.len() as u64).next_multiple_of(16);
                journal.push(JournalEntry {
                    at: plan.at.wrapping_add(bias),
                    original: plan.original,
                    jump: pad.jump,
                });
            }
            pads.push(pad);
        }
        let header = AreaHeader {
            entries: journal.len() as u32,
            bytes: self.bytes(),
            ..header
        };
        put(0, &header.write());
        for (n, entry) in journal.iter().enumerate() {
            put(HEADER_BYTES + n as u64 * ENTRY_BYTES, &entry.write());
        }
        Ok(Area {
            bytes,
            journal,
            pads,
        })
    }
}
