//! Adds names to profiles in pprof's format that have only addresses and build-ids.
//! [`LiveProfiler`](crate::LiveProfiler) makes such profiles without files.

use super::pprof::Tables;
use super::pprof_messages as message;
use crate::named_run::frames_at;
use crate::recorded::{NameSources, candidates, symbolizer_of};
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use memhook_symbols::{ModuleFile, SymbolError, Symbolizer};
use prost::Message;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Duration;

/// Maximum bytes of a profile, packed or not.
const MOST_BYTES: u64 = 64 << 20;
/// Maximum number of samples, locations, functions and strings together. In memory, each takes many
/// times its size in the file.
const MOST_ENTRIES: usize = 4 << 20;
/// Maximum number of modules. The largest programs have a few thousand.
const MOST_MODULES: usize = 4096;

/// Reason why a profile cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PprofError {
    /// The gzip data cannot be unpacked.
    #[error("it cannot be unpacked")]
    Packed(#[source] std::io::Error),
    /// The profile exceeds any plausible size.
    #[error(
        "it is larger than a profile may be ({} MiB, {MOST_ENTRIES} entries, {MOST_MODULES} modules)",
        MOST_BYTES >> 20
    )]
    TooLarge,
    /// The bytes are not messages of the format.
    #[error("it is not a profile in pprof's format")]
    Format(#[source] prost::DecodeError),
    /// The tables of the profile contradict each other.
    #[error("it is not a profile in pprof's format: {0}")]
    Tables(&'static str),
}

/// A profile in pprof's format.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredPprof(message::Profile);

impl StoredPprof {
    /// Reads a profile, packed by gzip or not.
    pub fn read(bytes: &[u8]) -> Result<StoredPprof, PprofError> {
        let mut plain = Vec::new();
        let bytes = if bytes.starts_with(&[0x1f, 0x8b]) {
            let mut decoder = MultiGzDecoder::new(bytes).take(MOST_BYTES + 1);
            decoder
                .read_to_end(&mut plain)
                .map_err(PprofError::Packed)?;
            &plain
        } else {
            bytes
        };
        if bytes.len() as u64 > MOST_BYTES || entries(bytes) > MOST_ENTRIES {
            return Err(PprofError::TooLarge);
        }
        let profile = message::Profile::decode(bytes).map_err(PprofError::Format)?;
        if profile.mapping.len() > MOST_MODULES {
            return Err(PprofError::TooLarge);
        }
        if profile.string_table.first().is_none_or(|s| !s.is_empty()) {
            return Err(PprofError::Tables("its first string is not the empty one"));
        }
        if profile.function.iter().any(|of| of.id > u64::MAX / 2) {
            return Err(PprofError::Tables("a function has an impossible number"));
        }
        Ok(StoredPprof(profile))
    }

    /// Returns the profile, packed.
    pub fn to_gzip(&self) -> std::io::Result<Vec<u8>> {
        let mut packed = GzEncoder::new(Vec::new(), Compression::default());
        packed.write_all(&self.0.encode_to_vec())?;
        packed.finish()
    }

    fn text(&self, index: i64) -> &str {
        let index = usize::try_from(index).ok();
        let text = index.and_then(|index| self.0.string_table.get(index));
        text.map_or("", String::as_str)
    }

    /// Locations without names, by the index of their mapping.
    fn nameless(&self) -> BTreeMap<usize, Vec<usize>> {
        let mappings = self.0.mapping.iter().enumerate();
        let by_id: HashMap<u64, usize> = mappings.map(|(at, of)| (of.id, at)).collect();
        let mut nameless: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, location) in self.0.location.iter().enumerate() {
            let mapping = by_id.get(&location.mapping_id);
            if let Some(&mapping) = mapping.filter(|_| location.line.is_empty()) {
                nameless.entry(mapping).or_default().push(at);
            }
        }
        nameless
    }
}

/// Counts the messages and strings of a profile. If the bytes are damaged, counts up to the damage.
fn entries(mut bytes: &[u8]) -> usize {
    let mut entries = 0;
    while !bytes.is_empty() {
        let Ok((tag, wire_type)) = decode_key(&mut bytes) else {
            break;
        };
        if skip_field(wire_type, tag, &mut bytes, DecodeContext::default()).is_err() {
            break;
        }
        entries += 1;
    }
    entries
}

/// Result of naming a profile's addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddedNames {
    /// Number of locations that had no name.
    pub nameless: usize,
    /// Number of addresses that have a name now.
    pub named: usize,
    /// Number of modules of these addresses.
    pub modules: usize,
    /// Paths and build-ids of modules for which no name was found.
    pub not_found: Vec<String>,
}

/// Finds names for addresses in files.
pub struct PprofNames {
    symbols: Symbolizer,
    roots: (Vec<PathBuf>, bool),
}

impl PprofNames {
    /// Creates a finder that searches these places.
    pub fn new(sources: NameSources) -> PprofNames {
        let (symbols, roots) = symbolizer_of(sources);
        PprofNames { symbols, roots }
    }

    /// Returns the reasons why existing files were not used.
    pub fn refused(&self) -> impl Iterator<Item = &SymbolError> {
        self.symbols.refused()
    }

    /// Adds functions, lines and inlined functions to the locations that have none. Changes nothing else.
    pub fn add_to(&mut self, profile: &mut StoredPprof) -> AddedNames {
        let mut added = AddedNames::default();
        let nameless = profile.nameless();
        let mut of_modules = Vec::new();
        for (mapping, locations) in nameless {
            added.nameless += locations.len();
            match self.look_up(profile, mapping, &locations) {
                Some(found) => {
                    added.modules += 1;
                    of_modules.push((mapping, locations, found));
                }
                None => added.not_found.push(called(profile, mapping)),
            }
        }
        let mut tables = Tables::of(std::mem::take(&mut profile.0));
        for (mapping, locations, found) in of_modules {
            let frames = found.iter().flatten();
            let has_lines = frames.clone().any(|frame| frame.line.is_some());
            let has_inlined = frames.clone().any(|frame| frame.inlined);
            let has_files = frames.clone().any(|frame| frame.file.is_some());
            for (at, frames) in locations.into_iter().zip(found) {
                added.named += usize::from(frames.iter().any(|f| f.function.is_some()));
                let lines = frames.iter().map(|frame| tables.line(frame)).collect();
                tables.profile.location[at].line = lines;
            }
            let mapping = &mut tables.profile.mapping[mapping];
            mapping.has_functions = true;
            mapping.has_filenames |= has_files;
            mapping.has_line_numbers |= has_lines;
            mapping.has_inline_frames |= has_inlined;
        }
        profile.0 = tables.profile;
        added
    }

    /// Returns the frames at each of these locations of a module, or `None` if no frame has a name.
    fn look_up(
        &mut self,
        profile: &StoredPprof,
        mapping: usize,
        locations: &[usize],
    ) -> Option<Vec<Vec<crate::StackFrame>>> {
        let of = profile.0.mapping[mapping];
        let path = profile.text(of.filename).to_owned();
        let build_id = from_hex(profile.text(of.build_id));
        let mut module = ModuleFile {
            candidates: candidates(&path, build_id.as_deref(), (&self.roots.0, self.roots.1)),
            path,
            build_id,
            start: of.memory_start,
            end: of.memory_limit,
            ..ModuleFile::default()
        };
        if module.build_id.is_none() && module.candidates.is_empty() {
            return None;
        }
        let first = self.symbols.first_svma(&module, of.file_offset);
        // A bundle may have names even without the module's file. The addresses of a whole module
        // begin where its file does.
        module.base = of
            .memory_start
            .wrapping_sub(first.unwrap_or(of.memory_start));
        self.symbols.set_modules(vec![module]);
        // A location is the address of the call, and the return address is a few bytes later. The lookup uses the byte
        // before a return address.
        let address = |&at: &usize| profile.0.location[at].address.wrapping_add(1);
        self.symbols.request(locations.iter().map(address));
        while !self.symbols.is_ready(Duration::from_secs(1)) {}
        let frames = locations.iter().map(address);
        let frames: Vec<_> = frames.map(|at| frames_at(&self.symbols, at)).collect();
        let mut all = frames.iter().flatten();
        all.any(|frame| frame.function.is_some()).then_some(frames)
    }
}

/// Returns the path and build-id of a module, for messages.
fn called(profile: &StoredPprof, mapping: usize) -> String {
    let of = profile.0.mapping[mapping];
    let (path, build_id) = (profile.text(of.filename), profile.text(of.build_id));
    let path = if path.is_empty() { "?" } else { path };
    if build_id.is_empty() {
        format!("{path} (no build-id)")
    } else {
        format!("{path} (build-id {build_id})")
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|c| c.to_digit(16).map(|digit| digit as u8))
        .collect();
    let digits = digits.filter(|digits| !digits.is_empty() && digits.len() % 2 == 0)?;
    Some(
        digits
            .chunks(2)
            .map(|pair| pair[0] << 4 | pair[1])
            .collect(),
    )
}
