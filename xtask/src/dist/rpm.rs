//! Package for Fedora, openSUSE and others: a lead, a header with digests, the header, and a cpio archive.
//! <https://rpm-software-management.github.io/rpm/manual/format_v4.html>

use super::Release;
use super::archive::{File, gzip, sha256};

const DESCRIPTION: &str = "\
memhook-rs attaches to a C or C++ process without a restart, a preload or a
rebuild, records every allocation and release, and shows what is live and what
has leaked by call stack.";

/// Number of SHA-256 in RFC 4880, section 9.4.
const SHA256: u32 = 8;
/// Version comparisons: equal, and less-or-equal for features of rpm itself (rpmds.h).
const EQUAL: u32 = 1 << 3;
const FEATURE: u32 = 1 << 24 | 1 << 1 | EQUAL;
/// Features that rpm needs in order to read this package.
const FEATURES: [(&str, &str); 3] = [
    ("rpmlib(CompressedFileNames)", "3.0.4-1"),
    ("rpmlib(FileDigests)", "4.6.0-1"),
    ("rpmlib(PayloadFilesHavePrefix)", "4.0-1"),
];

/// Tags of header entries: rpmtag.h.
mod tag {
    pub const SIG_SIZE: u32 = 1000;
    pub const HEADER_SIGNATURES: u32 = 62;
    pub const HEADER_IMMUTABLE: u32 = 63;
    pub const HEADER_I18N_TABLE: u32 = 100;
    pub const SIG_SHA256: u32 = 273;
    pub const NAME: u32 = 1000;
    pub const VERSION: u32 = 1001;
    pub const RELEASE: u32 = 1002;
    pub const SUMMARY: u32 = 1004;
    pub const DESCRIPTION: u32 = 1005;
    pub const BUILD_TIME: u32 = 1006;
    pub const SIZE: u32 = 1009;
    pub const LICENSE: u32 = 1014;
    pub const GROUP: u32 = 1016;
    pub const OS: u32 = 1021;
    pub const ARCH: u32 = 1022;
    pub const FILE_SIZES: u32 = 1028;
    pub const FILE_MODES: u32 = 1030;
    pub const FILE_RDEVS: u32 = 1033;
    pub const FILE_MTIMES: u32 = 1034;
    pub const FILE_DIGESTS: u32 = 1035;
    pub const FILE_LINK_TOS: u32 = 1036;
    pub const FILE_FLAGS: u32 = 1037;
    pub const FILE_USER_NAMES: u32 = 1039;
    pub const FILE_GROUP_NAMES: u32 = 1040;
    pub const SOURCE_RPM: u32 = 1044;
    pub const FILE_VERIFY_FLAGS: u32 = 1045;
    pub const ARCHIVE_SIZE: u32 = 1046;
    pub const PROVIDE_NAMES: u32 = 1047;
    pub const REQUIRE_FLAGS: u32 = 1048;
    pub const REQUIRE_NAMES: u32 = 1049;
    pub const REQUIRE_VERSIONS: u32 = 1050;
    pub const FILE_DEVICES: u32 = 1095;
    pub const FILE_INODES: u32 = 1096;
    pub const FILE_LANGS: u32 = 1097;
    pub const PROVIDE_FLAGS: u32 = 1112;
    pub const PROVIDE_VERSIONS: u32 = 1113;
    pub const DIR_INDEXES: u32 = 1116;
    pub const BASE_NAMES: u32 = 1117;
    pub const DIR_NAMES: u32 = 1118;
    pub const PAYLOAD_FORMAT: u32 = 1124;
    pub const PAYLOAD_COMPRESSOR: u32 = 1125;
    pub const PAYLOAD_FLAGS: u32 = 1126;
    pub const FILE_DIGEST_ALGO: u32 = 5011;
    pub const PAYLOAD_DIGESTS: u32 = 5092;
    pub const PAYLOAD_DIGEST_ALGO: u32 = 5093;
}

/// Types of header entries: rpmtag.h.
mod kind {
    pub const HALVES: u32 = 3;
    pub const NUMBERS: u32 = 4;
    pub const ONE_STRING: u32 = 6;
    pub const BYTES: u32 = 7;
    pub const STRINGS: u32 = 8;
    /// One string for each language of the table. The table has only one language.
    pub const TRANSLATED: u32 = 9;
}

pub fn package(release: &Release, files: &[File]) -> anyhow::Result<Vec<u8>> {
    let mut files: Vec<&File> = files.iter().collect();
    files.sort_by_key(|file| &file.path);
    let payload = cpio(&files, release.epoch);
    let compressed = gzip(&payload)?;
    let header = header(release, &files, payload.len(), &compressed).bytes(tag::HEADER_IMMUTABLE);

    let mut digests = Header::default();
    digests.strings(tag::SIG_SHA256, kind::ONE_STRING, &[sha256(&header)]);
    digests.numbers(tag::SIG_SIZE, &[(header.len() + compressed.len()) as u32]);
    let mut digests = digests.bytes(tag::HEADER_SIGNATURES);
    digests.resize(digests.len().next_multiple_of(8), 0);
    Ok([lead(release), digests, header, compressed].concat())
}

/// Returns the lead. Current versions of rpm read only its magic number.
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
    header.strings(tag::HEADER_I18N_TABLE, kind::STRINGS, &["C"]);
    header.strings(tag::NAME, kind::ONE_STRING, &["memhook-rs"]);
    header.strings(tag::VERSION, kind::ONE_STRING, &[&release.version]);
    header.strings(tag::RELEASE, kind::ONE_STRING, &["1"]);
    header.strings(
        tag::SUMMARY,
        kind::TRANSLATED,
        &["heap profiler for processes that are already running"],
    );
    header.strings(tag::DESCRIPTION, kind::TRANSLATED, &[DESCRIPTION]);
    header.numbers(tag::BUILD_TIME, &[epoch]);
    header.numbers(tag::SIZE, &[sizes.iter().sum()]);
    header.strings(tag::LICENSE, kind::ONE_STRING, &["MIT OR Apache-2.0"]);
    header.strings(tag::GROUP, kind::TRANSLATED, &["Development/Tools"]);
    header.strings(tag::OS, kind::ONE_STRING, &["linux"]);
    header.strings(tag::ARCH, kind::ONE_STRING, &["x86_64"]);
    header.numbers(tag::FILE_SIZES, &sizes);
    header.halves(tag::FILE_MODES, &modes);
    header.halves(tag::FILE_RDEVS, &vec![0; files.len()]);
    header.numbers(tag::FILE_MTIMES, &each(epoch));
    header.strings(
        tag::FILE_DIGESTS,
        kind::STRINGS,
        &files
            .iter()
            .map(|file| sha256(&file.bytes))
            .collect::<Vec<_>>(),
    );
    header.strings(tag::FILE_LINK_TOS, kind::STRINGS, &empty);
    header.numbers(tag::FILE_FLAGS, &each(0));
    header.strings(
        tag::FILE_USER_NAMES,
        kind::STRINGS,
        &vec!["root"; files.len()],
    );
    header.strings(
        tag::FILE_GROUP_NAMES,
        kind::STRINGS,
        &vec!["root"; files.len()],
    );
    // Without the name of a source package, rpm would treat this package as a source package.
    header.strings(
        tag::SOURCE_RPM,
        kind::ONE_STRING,
        &[format!("memhook-rs-{version}.src.rpm")],
    );
    header.numbers(tag::FILE_VERIFY_FLAGS, &each(u32::MAX));
    header.numbers(tag::ARCHIVE_SIZE, &[payload_size as u32]);
    header.strings(tag::PROVIDE_NAMES, kind::STRINGS, &["memhook-rs"]);
    header.numbers(tag::REQUIRE_FLAGS, &[FEATURE; FEATURES.len()]);
    header.strings(
        tag::REQUIRE_NAMES,
        kind::STRINGS,
        &FEATURES.map(|(name, _)| name),
    );
    header.strings(
        tag::REQUIRE_VERSIONS,
        kind::STRINGS,
        &FEATURES.map(|(_, version)| version),
    );
    header.numbers(tag::FILE_DEVICES, &each(1));
    header.numbers(
        tag::FILE_INODES,
        &(1..).take(files.len()).collect::<Vec<u32>>(),
    );
    header.strings(tag::FILE_LANGS, kind::STRINGS, &empty);
    header.numbers(tag::PROVIDE_FLAGS, &[EQUAL]);
    header.strings(tag::PROVIDE_VERSIONS, kind::STRINGS, &[&version]);
    header.numbers(tag::DIR_INDEXES, &indexes);
    header.strings(tag::BASE_NAMES, kind::STRINGS, &names);
    header.strings(tag::DIR_NAMES, kind::STRINGS, &distinct);
    header.strings(tag::PAYLOAD_FORMAT, kind::ONE_STRING, &["cpio"]);
    header.strings(tag::PAYLOAD_COMPRESSOR, kind::ONE_STRING, &["gzip"]);
    header.strings(tag::PAYLOAD_FLAGS, kind::ONE_STRING, &["9"]);
    header.numbers(tag::FILE_DIGEST_ALGO, &[SHA256]);
    header.strings(tag::PAYLOAD_DIGESTS, kind::STRINGS, &[sha256(compressed)]);
    header.numbers(tag::PAYLOAD_DIGEST_ALGO, &[SHA256]);
    header
}

/// Splits a path into the directory, with leading and trailing slash, and the name.
fn split(path: &str) -> (String, &str) {
    let (directory, name) = path.rsplit_once('/').expect("files are below directories");
    (format!("/{directory}/"), name)
}

/// Returns the mode with the bit of a regular file: inode(7).
fn mode(file: &File) -> u32 {
    0o100_000 | file.mode
}

/// Packs the files in the portable format of SVR4: cpio(5), "newc".
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
            kind::HALVES,
            values.len(),
            values.iter().flat_map(|value| value.to_be_bytes()),
        );
    }

    fn numbers(&mut self, tag: u32, values: &[u32]) {
        self.store.resize(self.store.len().next_multiple_of(4), 0);
        self.add(
            tag,
            kind::NUMBERS,
            values.len(),
            values.iter().flat_map(|value| value.to_be_bytes()),
        );
    }

    /// Returns the header as bytes. `region` is the tag whose entry marks all other entries as
    /// immutable.
    fn bytes(mut self, region: u32) -> Vec<u8> {
        let entries = self.index.len() as u32 + 1;
        let trailer = [region, kind::BYTES, (entries * 16).wrapping_neg(), 16];
        self.index
            .insert(0, [region, kind::BYTES, self.store.len() as u32, 16]);
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
