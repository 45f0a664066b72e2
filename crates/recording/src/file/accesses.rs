//! Reads and writes of blocks, after the columns of a frame.

use crate::Error;
use crate::file::decode::Visitor;
use crate::file::varint::{Cursor, put, zigzag};
use memhook_abi::Accesses;

/// Bits of the first byte of an entry.
const TOUCHED: u64 = 1;
const BY_SEVERAL: u64 = 2;

/// Collects the entries of a frame.
#[derive(Default)]
pub(crate) struct AccessWriter {
    /// Accesses to blocks that the frame releases. Each entry is preceded by the number of releases
    /// without an entry.
    released: Vec<u8>,
    /// Accesses to blocks that are still live at the end of the run. The block's address precedes
    /// each entry.
    live: Vec<u8>,
    without: u64,
    last_ns: [u64; 2],
    last_granule: u64,
}

impl AccessWriter {
    pub fn clear(&mut self) {
        self.released.clear();
        self.live.clear();
        self.without = 0;
        self.last_ns = [0; 2];
        self.last_granule = 0;
    }

    /// Bytes of the entries.
    pub fn len(&self) -> usize {
        self.released.len() + self.live.len()
    }

    /// Adds a released block, with its reads and writes if they are known.
    #[inline]
    pub fn release(&mut self, accesses: Option<Accesses>) {
        match accesses {
            None => self.without += 1,
            Some(accesses) => {
                put(&mut self.released, std::mem::take(&mut self.without));
                put_entry(&mut self.released, &accesses, &mut self.last_ns[0]);
            }
        }
    }

    /// Adds a block that is live at the end of the run.
    pub fn live(&mut self, accesses: &Accesses) {
        let granule = accesses.address >> 3;
        let delta = granule.wrapping_sub(self.last_granule) as i64;
        put(&mut self.live, zigzag(delta));
        self.last_granule = granule;
        put_entry(&mut self.live, accesses, &mut self.last_ns[1]);
    }

    /// Appends both lists, each preceded by its length in bytes; nothing if both are empty.
    pub fn write(&self, out: &mut Vec<u8>) {
        if self.len() == 0 {
            return;
        }
        put(out, self.released.len() as u64);
        put(out, self.live.len() as u64);
        out.extend_from_slice(&self.released);
        out.extend_from_slice(&self.live);
    }
}

fn put_entry(out: &mut Vec<u8>, accesses: &Accesses, last_ns: &mut u64) {
    let is_touched = accesses.reads + accesses.writes > 0;
    let several = if accesses.by_several { BY_SEVERAL } else { 0 };
    if !is_touched {
        put(out, 0);
        return;
    }
    put(out, TOUCHED | several);
    put(out, accesses.low);
    put(out, accesses.high.wrapping_sub(accesses.low));
    put(out, accesses.reads);
    put(out, accesses.writes);
    let delta = accesses.first_ns.wrapping_sub(*last_ns) as i64;
    put(out, zigzag(delta));
    put(out, accesses.last_ns.wrapping_sub(accesses.first_ns));
    *last_ns = accesses.first_ns;
    if accesses.by_several {
        put(out, accesses.false_shares);
    }
}

fn read_entry(cursor: &mut Cursor<'_>, last_ns: &mut u64) -> Result<Accesses, Error> {
    let flags = cursor.varint()?;
    if flags & !(TOUCHED | BY_SEVERAL) != 0 {
        return Err(Error::damaged("unknown flags of accesses"));
    }
    let mut accesses = Accesses::default();
    if flags & TOUCHED == 0 {
        return Ok(accesses);
    }
    accesses.low = cursor.varint()?;
    accesses.high = accesses.low.saturating_add(cursor.varint()?);
    accesses.reads = cursor.varint()?;
    accesses.writes = cursor.varint()?;
    accesses.first_ns = last_ns.wrapping_add(cursor.signed()? as u64);
    accesses.last_ns = accesses.first_ns.saturating_add(cursor.varint()?);
    *last_ns = accesses.first_ns;
    accesses.by_several = flags & BY_SEVERAL != 0;
    if accesses.by_several {
        accesses.false_shares = cursor.varint()?;
    }
    Ok(accesses)
}

/// Entries of a frame that is being read.
pub(crate) struct AccessReader<'a> {
    released: Cursor<'a>,
    live: Cursor<'a>,
    /// Number of releases without an entry before the next entry; `None` if no entries remain.
    without: Option<u64>,
    last_ns: u64,
}

impl<'a> AccessReader<'a> {
    /// Reads the part after the columns. Most frames have no such part.
    pub fn of(mut rest: Cursor<'a>) -> Result<Self, Error> {
        let mut of_length = [Cursor::new(&[]), Cursor::new(&[])];
        if !rest.is_empty() {
            let lengths = [rest.varint()?, rest.varint()?];
            for (cursor, length) in of_length.iter_mut().zip(lengths) {
                *cursor = Cursor::new(rest.take(usize::try_from(length).unwrap_or(usize::MAX))?);
            }
        }
        let [released, live] = of_length;
        let mut reader = Self {
            released,
            live,
            without: None,
            last_ns: 0,
        };
        reader.next()?;
        Ok(reader)
    }

    fn next(&mut self) -> Result<(), Error> {
        self.without = if self.released.is_empty() {
            None
        } else {
            Some(self.released.varint()?)
        };
        Ok(())
    }

    /// Processes the next release, which frees the block at this address, and reports the reads and
    /// writes of that block if they are known.
    #[inline]
    pub fn release(&mut self, address: u64, visitor: &mut impl Visitor) -> Result<(), Error> {
        match &mut self.without {
            None => Ok(()),
            Some(0) => {
                let mut accesses = read_entry(&mut self.released, &mut self.last_ns)?;
                accesses.address = address;
                visitor.access(&accesses);
                self.next()
            }
            Some(without) => {
                *without -= 1;
                Ok(())
            }
        }
    }

    /// Reports the blocks that are live at the end.
    pub fn live(&mut self, visitor: &mut impl Visitor) -> Result<(), Error> {
        let (mut granule, mut last_ns) = (0u64, 0);
        while !self.live.is_empty() {
            granule = granule.wrapping_add(self.live.signed()? as u64);
            let mut accesses = read_entry(&mut self.live, &mut last_ns)?;
            accesses.address = granule << 3;
            visitor.live_access(&accesses);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memhook_abi::Event;
    use proptest::prelude::*;

    #[derive(Default)]
    struct Told(Vec<Accesses>, Vec<Accesses>);

    impl Visitor for Told {
        fn begin_ring(&mut self, _: usize, _: u32) {}
        fn event(&mut self, _: Event, _: u64, _: u64) {}
        fn end_pass(&mut self, _: u64, _: u64) {}
        fn access(&mut self, accesses: &Accesses) {
            self.0.push(*accesses);
        }
        fn live_access(&mut self, accesses: &Accesses) {
            self.1.push(*accesses);
        }
    }

    fn accesses() -> impl Strategy<Value = Accesses> {
        let times = (any::<u32>(), any::<u32>());
        let counts = (0..3u64, 0..3u64, any::<bool>());
        (1..1u64 << 44, times, any::<u32>(), any::<u32>(), counts).prop_map(
            |(granule, (first, lasted), low, length, (reads, writes, by_several))| {
                let address = granule << 3;
                if reads + writes == 0 {
                    return Accesses {
                        address,
                        ..Accesses::default()
                    };
                }
                Accesses {
                    address,
                    first_ns: first.into(),
                    last_ns: u64::from(first) + u64::from(lasted),
                    low: low.into(),
                    high: u64::from(low) + u64::from(length),
                    reads,
                    writes,
                    by_several,
                    false_shares: if by_several { 7 } else { 0 },
                }
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            released in prop::collection::vec(prop::option::of(accesses()), 0..20),
            live in prop::collection::vec(accesses(), 0..20),
        ) {
            let mut writer = AccessWriter::default();
            released.iter().for_each(|one| writer.release(*one));
            live.iter().for_each(|one| writer.live(one));
            let mut bytes = Vec::new();
            writer.write(&mut bytes);
            let mut told = Told::default();
            let mut reader = AccessReader::of(Cursor::new(&bytes)).unwrap();
            for one in &released {
                let address = one.map_or(8, |one| one.address);
                reader.release(address, &mut told).unwrap();
            }
            reader.live(&mut told).unwrap();
            prop_assert_eq!(told.0, released.into_iter().flatten().collect::<Vec<_>>());
            prop_assert_eq!(told.1, live);
        }

        /// Arbitrary bytes are read or refused.
        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut told = Told::default();
            if let Ok(mut reader) = AccessReader::of(Cursor::new(&bytes)) {
                for _ in 0..10 {
                    let _ = reader.release(16, &mut told);
                }
                let _ = reader.live(&mut told);
            }
        }
    }
}
