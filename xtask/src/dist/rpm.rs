//! A package for Fedora, openSUSE and the like: a lead, a header with digests, the header, and a cpio archive.
//! <https://rpm-software-management.github.io/rpm/manual/format_v4.html>

use super::Release;
use super::archive::{File, gzip, sha256};

const DESCRIPTION: &str = "\
memhook-rs attaches to a C or C++ process without a restart, a preload or a
rebuild, records every allocation and release, and shows what is live and what
has leaked by call stack.";

/// The number of SHA-256 in RFC 4880, section 9.4.
const SHA256: u32 = 8;
/// A condition on a version: equal, and less or equal on a feature of rpm itself (rpmds.h).
const EQUAL: u32 = 1 << 3;
const FEATURE: u32 = 1 << 24 | 1 << 1 | EQUAL;
/// What rpm has to know in order to read this package.
const FEATURES: [(&str, &str); 3] = [
    ("rpmlib(CompressedFileNames)", "3.0.4-1"),
    ("rpmlib(FileDigests)", "4.6.0-1"),
    ("rpmlib(PayloadFilesHavePrefix)", "4.0-1"),
];

pub fn package(release: &Release, files: &[File]) -> anyhow::Result<Vec<u8>> {
    let mut files: Vec<&File> = files.iter().collect();
    files.sort_by_key(|file| &file.path);
    let payload = cpio(&files, release.epoch);
    let compressed = gzip(&payload)?;
    let header = header(release, &files, payload.len(), &compressed).bytes(63);

    let mut digests = Header::default();
    digests.strings(273, 6, &[sha256(&header)]);
    digests.numbers(1000, &[(header.len() + compressed.len()) as u32]);
    let mut digests = digests.bytes(62);
    digests.resize(digests.len().next_multiple_of(8), 0);
    Ok([lead(release), digests, header, compressed].concat())
}

/// Only the magic number is still looked at.
fn lead(release: &Release) -> Vec<u8> {
    let mut lead = vec![0xed, 0xab, 0xee, 0xdb, 3, 0, 0, 0, 0, 1];
    lead.extend(format!("memhook-rs-{}-1", release.version).bytes());
    lead.resize(76, 0);
    lead.extend([0, 1, 0, 5]);
    lead.resize(96, 0);
    lead
}

fn header(release: &Release, files: &[&File], payload_size: usize, compressed: &[u8]) -> Header {
    let version = format!("{}-1", release.version);
    let epoch = release.epoch as u32;
    let sizes: Vec<u32> = files.iter().map(|file| file.bytes.len() as u32).collect();
    let names = files.iter().map(|file| split(&file.path));
    let (directories, names): (Vec<String>, Vec<&str>) = names.unzip();
    let mut distinct = directories.clone();
    distinct.dedup();
    let indexes: Vec<u32> = directories
        .iter()
        .map(|directory| {
            distinct
                .iter()
                .position(|d| d == directory)
                .expect("one of them") as u32
        })
        .collect();
    let each = |number: u32| vec![number; files.len()];
    let modes: Vec<u16> = files.iter().map(|file| mode(file) as u16).collect();
    let empty = vec![""; files.len()];

    let mut header = Header::default();
    header.strings(100, 8, &["C"]);
    header.strings(1000, 6, &["memhook-rs"]);
    header.strings(1001, 6, &[&release.version]);
    header.strings(1002, 6, &["1"]);
    header.strings(
        1004,
        9,
        &["heap profiler for processes that are already running"],
    );
    header.strings(1005, 9, &[DESCRIPTION]);
    header.numbers(1006, &[epoch]);
    header.numbers(1009, &[sizes.iter().sum()]);
    header.strings(1014, 6, &["MIT OR Apache-2.0"]);
    header.strings(1016, 9, &["Development/Tools"]);
    header.strings(1021, 6, &["linux"]);
    header.strings(1022, 6, &["x86_64"]);
    header.numbers(1028, &sizes);
    header.halves(1030, &modes);
    header.halves(1033, &vec![0; files.len()]);
    header.numbers(1034, &each(epoch));
    header.strings(
        1035,
        8,
        &files
            .iter()
            .map(|file| sha256(&file.bytes))
            .collect::<Vec<_>>(),
    );
    header.strings(1036, 8, &empty);
    header.numbers(1037, &each(0));
    header.strings(1039, 8, &vec!["root"; files.len()]);
    header.strings(1040, 8, &vec!["root"; files.len()]);
    // Without the name of a source package, this would be one.
    header.strings(1044, 6, &[format!("memhook-rs-{version}.src.rpm")]);
    header.numbers(1045, &each(u32::MAX));
    header.numbers(1046, &[payload_size as u32]);
    header.strings(1047, 8, &["memhook-rs"]);
    header.numbers(1048, &[FEATURE; FEATURES.len()]);
    header.strings(1049, 8, &FEATURES.map(|(name, _)| name));
    header.strings(1050, 8, &FEATURES.map(|(_, version)| version));
    header.numbers(1095, &each(1));
    header.numbers(1096, &(1..).take(files.len()).collect::<Vec<u32>>());
    header.strings(1097, 8, &empty);
    header.numbers(1112, &[EQUAL]);
    header.strings(1113, 8, &[&version]);
    header.numbers(1116, &indexes);
    header.strings(1117, 8, &names);
    header.strings(1118, 8, &distinct);
    header.strings(1124, 6, &["cpio"]);
    header.strings(1125, 6, &["gzip"]);
    header.strings(1126, 6, &["9"]);
    header.numbers(5011, &[SHA256]);
    header.strings(5092, 8, &[sha256(compressed)]);
    header.numbers(5093, &[SHA256]);
    header
}

/// The directory from the root, with both slashes, and the name.
fn split(path: &str) -> (String, &str) {
    let (directory, name) = path.rsplit_once('/').expect("files are below directories");
    (format!("/{directory}/"), name)
}

/// With the bit of a regular file: inode(7).
fn mode(file: &File) -> u32 {
    0o100_000 | file.mode
}

/// The portable format of SVR4: cpio(5), "newc".
fn cpio(files: &[&File], epoch: u64) -> Vec<u8> {
    let mut archive = Vec::new();
    let mut add = |name: &str, inode: usize, mode: u32, bytes: &[u8]| {
        let (links, size, name_size) = (1, bytes.len(), name.len() + 1);
        let fields = [
            inode,
            mode as usize,
            0,
            0,
            links,
            epoch as usize,
            size,
            0,
            0,
            0,
            0,
            name_size,
            0,
        ];
        archive.extend(b"070701");
        archive.extend(
            fields
                .iter()
                .flat_map(|field| format!("{field:08x}").into_bytes()),
        );
        archive.extend(name.bytes().chain([0]));
        archive.resize(archive.len().next_multiple_of(4), 0);
        archive.extend(bytes);
        archive.resize(archive.len().next_multiple_of(4), 0);
    };
    for (inode, file) in (1..).zip(files) {
        add(&format!("./{}", file.path), inode, mode(file), &file.bytes);
    }
    add("TRAILER!!!", 0, 0, &[]);
    archive
}

/// Tags with their values, in the order of the tags.
#[derive(Default)]
struct Header {
    index: Vec<[u32; 4]>,
    store: Vec<u8>,
}

impl Header {
    fn add(&mut self, tag: u32, kind: u32, count: usize, bytes: impl IntoIterator<Item = u8>) {
        self.index
            .push([tag, kind, self.store.len() as u32, count as u32]);
        self.store.extend(bytes);
    }

    /// Type 6 is one string, 8 a list, 9 a translated one.
    fn strings(&mut self, tag: u32, kind: u32, values: &[impl AsRef<str>]) {
        let bytes = values
            .iter()
            .flat_map(|value| value.as_ref().bytes().chain([0]));
        self.add(tag, kind, values.len(), bytes);
    }

    fn halves(&mut self, tag: u32, values: &[u16]) {
        self.store.resize(self.store.len().next_multiple_of(2), 0);
        self.add(
            tag,
            3,
            values.len(),
            values.iter().flat_map(|value| value.to_be_bytes()),
        );
    }

    fn numbers(&mut self, tag: u32, values: &[u32]) {
        self.store.resize(self.store.len().next_multiple_of(4), 0);
        self.add(
            tag,
            4,
            values.len(),
            values.iter().flat_map(|value| value.to_be_bytes()),
        );
    }

    /// As it is in the file; `region` is the tag whose entry says that all the others belong together.
    fn bytes(mut self, region: u32) -> Vec<u8> {
        let entries = self.index.len() as u32 + 1;
        let trailer = [region, 7, (entries * 16).wrapping_neg(), 16];
        self.index
            .insert(0, [region, 7, self.store.len() as u32, 16]);
        let big_endian = |numbers: &[u32]| -> Vec<u8> {
            numbers
                .iter()
                .flat_map(|number| number.to_be_bytes())
                .collect()
        };
        self.store.extend(big_endian(&trailer));
        let mut bytes = vec![0x8e, 0xad, 0xe8, 1, 0, 0, 0, 0];
        bytes.extend(big_endian(&[entries, self.store.len() as u32]));
        bytes.extend(big_endian(self.index.as_flattened()));
        bytes.extend(self.store);
        bytes
    }
}
