//! A generated BAM file of aligned reads ("Sequence Alignment/Map Format Specification", section 4).

use fastrand::Rng;
use std::path::Path;

/// Number of reads. The paper also used 4,000 reads of 101 bases.
const READS: usize = 4000;
const BASES: usize = 101;
/// Bytes in a BGZF block, which holds at most 64 KiB.
const BLOCK_BYTES: usize = 60_000;
const REFERENCE: &str = "chr1";
const REFERENCE_BASES: i32 = 1_000_000;

/// Writes the file. The reads are in random order, and half of them have a mapping quality below 50.
pub fn write(to: &Path) {
    let mut random = Rng::with_seed(1);
    let mut bam = Vec::new();
    let text = format!("@HD\tVN:1.6\tSO:unsorted\n@SQ\tSN:{REFERENCE}\tLN:{REFERENCE_BASES}\n");
    bam.extend_from_slice(b"BAM\x01");
    add(&mut bam, text.len() as i32);
    bam.extend_from_slice(text.as_bytes());
    add(&mut bam, 1);
    add(&mut bam, REFERENCE.len() as i32 + 1);
    bam.extend_from_slice(REFERENCE.as_bytes());
    bam.push(0);
    add(&mut bam, REFERENCE_BASES);
    for number in 0..READS {
        let read = read(number, &mut random);
        add(&mut bam, read.len() as i32);
        bam.extend_from_slice(&read);
    }
    let mut file = Vec::new();
    for block in bam.chunks(BLOCK_BYTES) {
        add_block(&mut file, block);
    }
    // An empty block ends the file.
    add_block(&mut file, &[]);
    std::fs::write(to, file).expect("written");
}

fn add(to: &mut Vec<u8>, number: i32) {
    to.extend_from_slice(&number.to_le_bytes());
}

fn read(number: usize, random: &mut Rng) -> Vec<u8> {
    let name = format!("read:{number:06}:{}\0", random.u64(..100_000));
    let position = random.i32(..REFERENCE_BASES - BASES as i32);
    let mut read = Vec::new();
    add(&mut read, 0);
    add(&mut read, position);
    let quality = random.u8(..100);
    read.extend_from_slice(&[name.len() as u8, quality]);
    let bin = bin_of(position, position + BASES as i32) as u16;
    read.extend_from_slice(&bin.to_le_bytes());
    // One CIGAR operation, no flags.
    read.extend_from_slice(&[1, 0, 0, 0]);
    add(&mut read, BASES as i32);
    // The read has no mate.
    for none in [-1, -1, 0] {
        add(&mut read, none);
    }
    read.extend_from_slice(name.as_bytes());
    // "101M"
    add(&mut read, (BASES as i32) << 4);
    // Two bases per byte: 1, 2, 4 and 8 are A, C, G and T.
    for at in 0..BASES.div_ceil(2) {
        let second = if 2 * at + 1 < BASES {
            1 << random.u64(..4)
        } else {
            0
        };
        read.push(1 << random.u64(..4) << 4 | second);
    }
    read.extend((0..BASES).map(|_| random.u8(..41)));
    read.extend_from_slice(b"NMC");
    read.push(random.u8(..5));
    read.extend_from_slice(b"RGZlane1\0");
    read
}

/// `reg2bin` of the specification, 5.3.
fn bin_of(from: i32, to: i32) -> i32 {
    let last = to - 1;
    let levels = [(14, 15), (17, 12), (20, 9), (23, 6), (26, 3)];
    let fits = levels
        .iter()
        .find(|(shift, _)| from >> shift == last >> shift);
    fits.map_or(0, |(shift, bits)| ((1 << bits) - 1) / 7 + (from >> shift))
}

/// Adds a gzip member whose extra field has its length (section 4.1), with one stored block (RFC 1951, 3.2.4).
fn add_block(file: &mut Vec<u8>, bytes: &[u8]) {
    const HEADER: [u8; 16] = [
        0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 0xff, 6, 0, b'B', b'C', 2, 0,
    ];
    let stored = bytes.len() as u16;
    let whole = (HEADER.len() + 2 + 5 + bytes.len() + 8) as u16;
    file.extend_from_slice(&HEADER);
    file.extend_from_slice(&(whole - 1).to_le_bytes());
    file.push(1);
    file.extend_from_slice(&stored.to_le_bytes());
    file.extend_from_slice(&(!stored).to_le_bytes());
    file.extend_from_slice(bytes);
    file.extend_from_slice(&crc(bytes).to_le_bytes());
    file.extend_from_slice(&u32::from(stored).to_le_bytes());
}

/// Returns the checksum of gzip (RFC 1952, section 8).
fn crc(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
    let of_byte = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), step);
    !bytes.iter().fold(!0, of_byte)
}
