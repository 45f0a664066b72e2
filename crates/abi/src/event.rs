//! The 16-byte event of the ring.
//!
//! ```text
//! word 0:  bits  0..45  block address >> 3     (48-bit user addresses, 8-byte alignment)
//!          bits 45..48  op
//!          bits 48..64  sequence, low 16 bits
//! word 1:  bits  0..32  size in bytes; u32::MAX: the true size is in the SizeExtension before
//!          bits 32..58  stack id              (16-byte granule of the stack arena)
//!          bits 58..64  sequence, bits 16..22
//! Pair:          the low sequence bits are a count, the high ones 0
//! Tick:          word 1 is a time stamp in nanoseconds or TSC cycles
//! SamplingChange: bit 48 is set and the op is that of a tick; word 1 is the mean number of bytes
//!                between samples, 0: every allocation is recorded
//! Mapped, Unmapped, Discarded: a tick with bit 49, 50 or 51 and an address in word 0; word 1 has the
//!                sequence number in bits 0..32 and the stack id. A SizeExtension with the bytes is
//!                always before it
//! CallTime:      bits 48 and 49 are set and the op is that of a tick; bits 0..45 are the requested size in
//!                bytes, word 1 has counts of the time stamp counter in bits 0..32 and the stack id
//! SizeExtension: word 1 is the size of the next allocation in bytes
//! Access:        bit 52 is set and the op is that of a tick; bits 53..55 say which of the four words
//!                about the reads and writes of the block that the next release is about, bits 0..45
//!                are its first value and word 1 its second
//! ```
//!
//! Eight-byte alignment is enough: jemalloc and tcmalloc return 8-byte aligned blocks for 8-byte requests, glibc
//! returns 16-byte aligned blocks, and no hooked function returns a smaller alignment. 48 bits are enough because Linux
//! returns addresses above 2^47 only from an mmap with a hint above 2^47
//! (Documentation/arch/x86/x86_64/5level-paging.rst).
//!
//! 22 bits of the sequence word are enough. Two events of one address are compared while both are at most two consumer
//! passes old, and the increments of one word between them cannot exceed the number of releases that fit into all
//! rings; see [`sequence_before`].

/// Width of the sequence number carried by an event.
pub const SEQUENCE_BITS: u32 = 22;

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// A block was allocated. The event is published after the allocator has returned the block, before the caller gets
    /// it.
    Allocation = 1,
    /// A block will be released. The event is published before the allocator is called.
    Release = 2,
    /// `realloc` will replace the old block. The event becomes final unless [`Op::ReallocFailed`] follows.
    ReallocRelease = 3,
    /// The `realloc` that was announced on this ring has failed: the old block stays.
    ReallocFailed = 4,
    /// Time stamp: everything after it on this ring happened at or after this time.
    Tick = 5,
    /// The size of the next allocation does not fit into 32 bits.
    SizeExtension = 6,
    /// Blocks were allocated and released repeatedly. Between each allocation and its release, this thread made only
    /// other pairs. The releases have no numbers; the sequence is the count.
    Pair = 7,
    /// From here on, this ring records samples of the allocations, or all of them again
    /// ([`crate::flags::ADAPT_WHEN_FULL`]). The three bits of the op have no eighth value, so this is a tick with a bit
    /// that other ticks do not have.
    SamplingChange = 0b1101,
    /// A range of addresses was mapped. The event is published before the program gets the address. Like the change of
    /// the sampling, it is a tick with an extra bit.
    Mapped = 0x15,
    /// A range was unmapped. The event is published after the call, with a number that was taken before the call. A
    /// size of 0 means the whole shared memory segment that was attached at the address.
    Unmapped = 0x25,
    /// The contents of a range were discarded (`madvise`); the range stays mapped.
    Discarded = 0x45,
    /// A part of the reads and writes of the block that is released next on this ring ([`crate::flags::ACCESSES`]).
    Access = 0x85,
    /// Time in the allocator for an allocation whose event follows or is lost ([`crate::flags::CALL_TIMES`]).
    CallTime = 0x1d,
}

/// Returns the code of a tick with these upper 16 bits.
const fn code_of_tick(upper: u64) -> u64 {
    match upper {
        2 | 3 | 4 | 8 => Op::Tick as u64 | upper << 3,
        // The bits above contain the number of the word.
        _ if upper & 0x1f == 0x10 => Op::Access as u64,
        _ => Op::Tick as u64,
    }
}

impl Op {
    /// Returns the op with this code, or `None` for a code that no hook of this version writes.
    pub const fn from_code(code: u64) -> Option<Op> {
        Some(match code {
            1 => Op::Allocation,
            2 => Op::Release,
            3 => Op::ReallocRelease,
            4 => Op::ReallocFailed,
            5 => Op::Tick,
            0b1101 => Op::SamplingChange,
            0x85 => Op::Access,
            6 => Op::SizeExtension,
            7 => Op::Pair,
            0x15 => Op::Mapped,
            0x25 => Op::Unmapped,
            0x45 => Op::Discarded,
            0x1d => Op::CallTime,
            _ => return None,
        })
    }
}

/// An event, as stored in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct RawEvent {
    /// Address, op and the low sequence bits.
    pub word0: u64,
    /// Size, stack id and the high sequence bits; or one 64-bit value.
    pub word1: u64,
}

/// A decoded event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its kind.
    pub op: Op,
    /// Block address (avma); 0 for ticks and extensions.
    pub address: u64,
    /// For a release, the sequence word's value after the increment. For an allocation, the value that was read. For a
    /// pair, the number of pairs, 1..=65,535. For a call time, the number of ticks; `u32::MAX` also represents larger
    /// numbers.
    pub sequence: u32,
    /// Requested size in bytes, `u32::MAX` if an extension carries it; unused for releases.
    pub size: u32,
    /// Stack id; 0 for none.
    pub stack: u32,
    /// Second word as a whole: the value of a tick or an extension. For a call time, the requested size in bytes.
    pub value: u64,
}

/// Reads and writes of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// The block (avma).
    pub address: u64,
    /// Time of the first access in nanoseconds since the attach. Like all fields below, 0 if there was no access.
    pub first_ns: u64,
    /// Time of the last access.
    pub last_ns: u64,
    /// Offset of the lowest accessed byte.
    pub low: u64,
    /// Offset after the highest accessed byte.
    pub high: u64,
    /// Number of reads.
    pub reads: u64,
    /// Number of writes.
    pub writes: u64,
    /// True if more than one thread accessed the block.
    pub by_several: bool,
    /// Number of times that a thread wrote to a cache line that another thread had written last, but to different
    /// bytes.
    pub false_shares: u64,
}

const ADDRESS_MASK: u64 = (1 << 45) - 1;

impl Event {
    /// Returns the number of the word of an [`Op::Access`], below 4.
    pub const fn access_word(&self) -> usize {
        (self.sequence as usize >> 5) & 3
    }

    /// Returns the first value of an [`Op::Access`].
    pub const fn access_small(&self) -> u64 {
        self.address >> 3
    }
}

impl Event {
    /// Returns the words of an event about a block ([`RawEvent::unpack_as`]), for functions that are not inlined. Such
    /// a function would otherwise get a pointer to the event. The compiler would then keep every event in memory and
    /// copy it from there in wider words than it wrote, and such a load waits until the stores have left the store
    /// buffer.
    #[inline(always)]
    pub const fn words(&self) -> RawEvent {
        RawEvent::pack(self.op, self.address, self.sequence, self.size, self.stack)
    }
}

impl RawEvent {
    /// Packs an event about a block. In Rust, only tests and models of the hook write such events into rings.
    #[inline]
    pub const fn pack(op: Op, address: u64, sequence: u32, size: u32, stack: u32) -> RawEvent {
        RawEvent {
            word0: (address >> 3) & ADDRESS_MASK
                | (op as u64) << 45
                | (sequence as u64 & 0xffff) << 48,
            word1: size as u64
                | (stack as u64 & 0x03ff_ffff) << 32
                | ((sequence as u64 >> 16) & 0x3f) << 58,
        }
    }

    /// Packs an event about a mapping. A size extension with the bytes must precede it.
    pub const fn pack_mapping(op: Op, address: u64, number: u32, stack: u32) -> RawEvent {
        let op = op as u64;
        RawEvent {
            word0: (address >> 3) & ADDRESS_MASK | (op & 7) << 45 | (op >> 3) << 48,
            word1: number as u64 | (stack as u64 & 0x03ff_ffff) << 32,
        }
    }

    /// Packs a tick, a size extension or a change of the sampling.
    pub const fn pack_value(op: Op, value: u64) -> RawEvent {
        RawEvent {
            word0: (op as u64) << 45,
            word1: value,
        }
    }

    /// Packs the time in the allocator for an allocation of `size` bytes, in ticks of the time stamp counter.
    pub const fn pack_call_time(size: u64, counts: u32, stack: u32) -> RawEvent {
        let op = Op::CallTime as u64;
        RawEvent {
            word0: size & ADDRESS_MASK | (op & 7) << 45 | (op >> 3) << 48,
            word1: counts as u64 | (stack as u64 & 0x03ff_ffff) << 32,
        }
    }

    /// Packs word `index` about the reads and writes of the block that is released next.
    pub const fn pack_access(index: u64, small: u64, value: u64) -> RawEvent {
        RawEvent {
            word0: small & ADDRESS_MASK | (Op::Access as u64) << 45 | (index & 3) << 53,
            word1: value,
        }
    }

    /// Decodes the event; `None` if the op is unknown.
    #[inline]
    pub const fn unpack(self) -> Option<Event> {
        let code = (self.word0 >> 45) & 7;
        // In all other events, the lowest bit of the sequence number does not belong to the op.
        let is_change = self.word0 == (Op::SamplingChange as u64) << 45;
        let code = match code {
            _ if is_change => code | 8,
            5 => code_of_tick(self.word0 >> 48),
            _ => code,
        };
        let Some(op) = Op::from_code(code) else {
            return None;
        };
        if matches!(op, Op::Mapped | Op::Unmapped | Op::Discarded) {
            return Some(Event {
                op,
                address: (self.word0 & ADDRESS_MASK) << 3,
                sequence: self.word1 as u32,
                size: 0,
                stack: ((self.word1 >> 32) & 0x03ff_ffff) as u32,
                value: 0,
            });
        }
        if matches!(op, Op::CallTime) {
            return Some(Event {
                op,
                address: 0,
                sequence: self.word1 as u32,
                size: 0,
                stack: ((self.word1 >> 32) & 0x03ff_ffff) as u32,
                value: self.word0 & ADDRESS_MASK,
            });
        }
        Some(self.unpack_as(op))
    }

    /// Returns true if this is an event of that kind. The kind must have its own op code: an allocation, a release or a
    /// pair, for example, but not a tick or a kind that is encoded as a tick.
    #[inline(always)]
    pub const fn is(self, op: Op) -> bool {
        (self.word0 >> 45) & 7 == op as u64
    }

    /// Decodes an event about a block whose kind is known.
    #[inline(always)]
    pub const fn unpack_as(self, op: Op) -> Event {
        Event {
            op,
            address: (self.word0 & ADDRESS_MASK) << 3,
            sequence: (self.word0 >> 48) as u32 | ((self.word1 >> 58) as u32) << 16,
            size: self.word1 as u32,
            stack: ((self.word1 >> 32) & 0x03ff_ffff) as u32,
            value: self.word1,
        }
    }
}

/// Returns true if sequence number `a` comes before `b`, as serial numbers of [`SEQUENCE_BITS`] bits.
///
/// The result is exact while the two are less than 2^21 increments apart. Both events are younger than two consumer
/// passes, so the increments between them are releases that were in rings at the same time. With the default ring
/// (65,536 events), this holds for up to 32 rings that contain only releases of blocks in one page group.
#[inline]
pub const fn sequence_before(a: u32, b: u32) -> bool {
    let half = 1u32 << (SEQUENCE_BITS - 1);
    let mask = (1u32 << SEQUENCE_BITS) - 1;
    let distance = b.wrapping_sub(a) & mask;
    distance != 0 && distance < half
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_is_lossless() {
        for (address, sequence, size, stack) in [
            (0x7fff_ffff_fff8, 0x3f_ffff, u32::MAX, 0x03ff_ffff),
            (0x10, 0, 0, 0),
            (0x5555_5555_5558, 0x12_3456, 1001, 77),
        ] {
            let event = RawEvent::pack(Op::Allocation, address, sequence, size, stack)
                .unpack()
                .unwrap();
            assert_eq!(event.address, address);
            assert_eq!(event.sequence, sequence);
            assert_eq!(event.size, size);
            assert_eq!(event.stack, stack);
            assert_eq!(event.op, Op::Allocation);
        }
        for op in [
            Op::Allocation,
            Op::Release,
            Op::ReallocRelease,
            Op::ReallocFailed,
            Op::Pair,
        ] {
            let raw = RawEvent::pack(op, 0x7fff_ffff_fff8, 0x3f_ffff, u32::MAX, 0x03ff_ffff);
            assert_eq!(raw.unpack(), Some(raw.unpack_as(op)));
            assert!(raw.is(op));
            assert!(!raw.is(Op::SizeExtension));
        }
        for special in [
            RawEvent::pack_value(Op::Tick, u64::MAX),
            RawEvent::pack_value(Op::SamplingChange, 65_536),
            RawEvent::pack_access(3, 77, u64::MAX),
            RawEvent::pack_mapping(Op::Mapped, 0x7fff_ffff_f000, u32::MAX, 1),
            RawEvent::pack_call_time(64, 1000, 7),
        ] {
            assert!(!special.is(Op::Allocation) && !special.is(Op::Release));
        }
        let tick = RawEvent::pack_value(Op::Tick, u64::MAX).unpack().unwrap();
        assert_eq!((tick.op, tick.value), (Op::Tick, u64::MAX));
        let change = RawEvent::pack_value(Op::SamplingChange, 65_536);
        let change = change.unpack().unwrap();
        assert_eq!((change.op, change.value), (Op::SamplingChange, 65_536));
        let access = RawEvent::pack_access(3, 77, u64::MAX).unpack().unwrap();
        assert_eq!((access.op, access.value), (Op::Access, u64::MAX));
        assert_eq!((access.access_word(), access.access_small()), (3, 77));
        for op in [Op::Mapped, Op::Unmapped, Op::Discarded] {
            let event = RawEvent::pack_mapping(op, 0x7fff_ffff_f000, u32::MAX, 0x03ff_ffff);
            let event = event.unpack().unwrap();
            assert_eq!((event.op, event.address), (op, 0x7fff_ffff_f000));
            assert_eq!((event.sequence, event.stack), (u32::MAX, 0x03ff_ffff));
        }
        let time = RawEvent::pack_call_time(1 << 40, u32::MAX, 0x03ff_ffff);
        let time = time.unpack().unwrap();
        assert_eq!((time.op, time.value), (Op::CallTime, 1 << 40));
        assert_eq!((time.sequence, time.stack), (u32::MAX, 0x03ff_ffff));
        assert_eq!(RawEvent::default().unpack(), None);
    }

    #[test]
    fn sequence_order_wraps() {
        assert!(sequence_before(1, 2));
        assert!(!sequence_before(2, 1));
        assert!(!sequence_before(5, 5));
        assert!(sequence_before(0x3f_ffff, 0));
    }
}
