//! Encoding of backtraces, and the reader's table of backtraces.
//!
//! Backtraces that are adjacent in time often share their outer frames. So frames are written from
//! the outermost inwards: first the number of frames shared with the previous stack, then the other
//! frames as differences.

use crate::Error;
use crate::file::varint::{Cursor, put, zigzag};
use memhook_abi::MAX_DEPTH;
use memhook_ledger::MOST_LEVELS;
use memhook_stream::Stack;
use rustc_hash::FxHashMap;

/// Payload bytes after which a chunk of stacks is full.
pub(crate) const FULL_BYTES: usize = 1 << 20;

/// Value that replaces a depth, with a sampling level added. The entry then stands for samples of
/// another stack at that level. Readers that do not know this value take it for too deep a stack
/// and reject the file. This is intended, because their sums would be wrong.
pub(crate) const SAMPLES: u64 = 1 << 16;

/// Collects the stacks of one chunk.
#[derive(Default)]
pub(crate) struct StackWriter {
    pub payload: Vec<u8>,
    pub count: usize,
    /// Frames of the last stack, outermost first.
    last: Vec<u64>,
    last_id: u32,
}

impl StackWriter {
    pub fn push(&mut self, id: u32, stack: &Stack) {
        let out = &mut self.payload;
        put(out, zigzag(i64::from(id) - i64::from(self.last_id)));
        out.push(stack.function);
        let depth = stack.frames.len().min(MAX_DEPTH);
        put(out, (depth as u64) << 1 | u64::from(stack.truncated));
        let frames = stack.frames[..depth].iter().rev();
        let shared = frames
            .clone()
            .zip(&self.last)
            .take_while(|(a, b)| a == b)
            .count();
        put(out, shared as u64);
        let mut previous = self
            .last
            .get(shared)
            .or(self.last.last())
            .copied()
            .unwrap_or(0);
        self.last.truncate(shared);
        for &frame in frames.skip(shared) {
            put(out, zigzag(frame.wrapping_sub(previous) as i64));
            previous = frame;
            self.last.push(frame);
        }
        self.last_id = id;
        self.count += 1;
    }

    /// Adds the id of samples of this level of `stack`.
    pub fn push_samples(&mut self, id: u32, stack: u32, level: u8) {
        let out = &mut self.payload;
        put(out, zigzag(i64::from(id) - i64::from(self.last_id)));
        out.push(0);
        put(out, SAMPLES + u64::from(level));
        put(out, u64::from(stack));
        self.last_id = id;
        self.count += 1;
    }

    /// Takes the payload so far, and begins an empty chunk.
    pub fn take(&mut self) -> (Vec<u8>, usize) {
        let done = std::mem::take(self);
        (done.payload, done.count)
    }
}

#[derive(Clone, Copy)]
struct Entry {
    start: u32,
    depth: u8,
    function: u8,
    truncated: bool,
}

/// A recorded backtrace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackView<'a> {
    /// Function id of the hooked call, an index into [`memhook_abi::HOOKED_FUNCTIONS`].
    pub function: u8,
    /// True if the walk ended before the outermost frame.
    pub truncated: bool,
    /// Return addresses (avma), innermost first.
    pub frames: &'a [u64],
}

/// All backtraces of a recording.
#[derive(Default)]
pub struct Stacks {
    frames: Vec<u64>,
    by_id: FxHashMap<u32, Entry>,
    /// Stack and level by the ids of samples.
    samples: FxHashMap<u32, (u32, u8)>,
}

impl Stacks {
    /// Returns the backtrace with this id, as events contain it.
    pub fn get(&self, id: u32) -> Option<StackView<'_>> {
        let (stack, _) = self.sampled(id);
        let entry = self.by_id.get(&stack)?;
        let start = entry.start as usize;
        Some(StackView {
            function: entry.function,
            truncated: entry.truncated,
            frames: &self.frames[start..start + usize::from(entry.depth)],
        })
    }

    /// Returns the meaning of an event's id: a stack, and the sampling level of its allocations in
    /// [`SampledAllocations`](memhook_ledger::SampledAllocations). If the allocations were not
    /// sampled, the level is 0 and the id is that of the stack.
    pub fn sampled(&self, id: u32) -> (u32, u8) {
        self.samples.get(&id).copied().unwrap_or((id, 0))
    }

    /// Returns stack and level by the ids of samples.
    pub(crate) fn samples(&self) -> &FxHashMap<u32, (u32, u8)> {
        &self.samples
    }

    /// Returns the number of backtraces.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns true if there are no backtraces.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Iterates over all ids except those of samples, in any order.
    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.by_id.keys().copied()
    }

    pub(crate) fn read(&mut self, payload: &[u8]) -> Result<(), Error> {
        let mut cursor = Cursor::new(payload);
        let mut last: Vec<u64> = Vec::new();
        let mut last_id = 0i64;
        while !cursor.is_empty() {
            last_id = last_id.wrapping_add(cursor.signed()?);
            let id = u32::try_from(last_id).map_err(|_| Error::damaged("a stack id"))?;
            let function = cursor.byte()?;
            let depth = cursor.varint()?;
            if let Some(level) = depth.checked_sub(SAMPLES) {
                let stack = cursor.u32()?;
                if level == 0 || level > u64::from(MOST_LEVELS) {
                    return Err(Error::damaged("samples at an impossible distance"));
                }
                self.samples.insert(id, (stack, level as u8));
                continue;
            }
            let (depth, truncated) = ((depth >> 1) as usize, depth & 1 != 0);
            let shared = cursor.varint()? as usize;
            if depth > MAX_DEPTH || shared > depth || shared > last.len() {
                return Err(Error::damaged("a stack deeper than any"));
            }
            let mut previous = last.get(shared).or(last.last()).copied().unwrap_or(0);
            last.truncate(shared);
            for _ in shared..depth {
                previous = previous.wrapping_add(cursor.signed()? as u64);
                last.push(previous);
            }
            let start = u32::try_from(self.frames.len())
                .map_err(|_| Error::damaged("more frames than the stack table can hold"))?;
            self.frames.extend(last.iter().rev());
            let entry = Entry {
                start,
                depth: depth as u8,
                function,
                truncated,
            };
            self.by_id.insert(id, entry);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_come_back() {
        let stack = |frames: &[u64], truncated| Stack {
            function: 3,
            truncated,
            frames: frames.to_vec(),
        };
        let all = [
            (7, stack(&[0x10, 0x20, 0x30], false)),
            (9, stack(&[0x11, 0x20, 0x30], true)),
            (8, stack(&[], false)),
            (1, stack(&[u64::MAX, 0], false)),
            (2, stack(&[0x30], false)),
        ];
        let mut writer = StackWriter::default();
        for (id, stack) in &all {
            writer.push(*id, stack);
        }
        writer.push_samples(5, 9, 24);
        writer.push_samples(6, 0, 1);
        let (payload, count) = writer.take();
        assert_eq!(count, all.len() + 2);
        let mut stacks = Stacks::default();
        stacks.read(&payload).unwrap();
        assert_eq!((stacks.sampled(5), stacks.sampled(6)), ((9, 24), (0, 1)));
        assert_eq!((stacks.sampled(9), stacks.get(6)), ((9, 0), None));
        assert_eq!(stacks.get(5), stacks.get(9));
        for (id, stack) in &all {
            let view = stacks.get(*id).unwrap();
            assert_eq!(
                (view.frames, view.truncated),
                (&stack.frames[..], stack.truncated)
            );
        }
        for cut in 0..payload.len() {
            let _ = Stacks::default().read(&payload[..cut]);
        }
    }
}
