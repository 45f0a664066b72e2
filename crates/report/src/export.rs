//! One way into every exported format.

use crate::formats::{flamegraph, folded, heaptrack, massif, pprof, speedscope};
use crate::{Amount, Measures, Profile, view};
use flate2::{Compression, write::GzEncoder};
use std::{
    io::{self, BufWriter, Write},
    str::FromStr,
};

/// What a profile can be written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// One line a call stack: `main;serve;parse 4096`.
    Folded,
    /// Flame graph, an SVG that zooms and searches.
    Flamegraph,
    /// `profile.proto`, gzipped, for `go tool pprof`.
    Pprof,
    /// What `heaptrack_print` and `heaptrack_gui` read.
    Heaptrack,
    /// JSON of <https://www.speedscope.app>.
    Speedscope,
    /// What `ms_print` reads.
    Massif,
    /// One self-contained HTML page.
    Html,
}

impl ExportFormat {
    /// All of them.
    pub const ALL: [ExportFormat; 7] = [
        ExportFormat::Folded,
        ExportFormat::Flamegraph,
        ExportFormat::Pprof,
        ExportFormat::Heaptrack,
        ExportFormat::Speedscope,
        ExportFormat::Massif,
        ExportFormat::Html,
    ];

    /// The word on the command line.
    pub fn name(self) -> &'static str {
        match self {
            ExportFormat::Folded => "folded",
            ExportFormat::Flamegraph => "flamegraph",
            ExportFormat::Pprof => "pprof",
            ExportFormat::Heaptrack => "heaptrack",
            ExportFormat::Speedscope => "speedscope",
            ExportFormat::Massif => "massif",
            ExportFormat::Html => "html",
        }
    }

    /// Whether it is JSON.
    pub fn is_json(self) -> bool {
        self == ExportFormat::Speedscope
    }

    /// Whether the bytes are not for a terminal.
    pub fn is_binary(self) -> bool {
        self == ExportFormat::Pprof
    }
}

impl FromStr for ExportFormat {
    type Err = String;

    fn from_str(word: &str) -> Result<ExportFormat, String> {
        let found = ExportFormat::ALL.into_iter().find(|f| f.name() == word);
        found.ok_or_else(|| {
            let names = ExportFormat::ALL.map(ExportFormat::name).join(", ");
            format!("unknown format {word}: use one of {names}")
        })
    }
}

/// What is counted where a format has one value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Measure {
    /// Live at the end of the window.
    #[default]
    Live,
    /// Live when most bytes were.
    Peak,
    /// Allocated within the window.
    Allocated,
    /// Released within the window.
    Released,
    /// Allocated and released before the thread's next allocation.
    Temporary,
}

impl Measure {
    /// All of them.
    pub const ALL: [Measure; 5] = [
        Measure::Live,
        Measure::Peak,
        Measure::Allocated,
        Measure::Released,
        Measure::Temporary,
    ];

    /// The word on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Measure::Live => "live",
            Measure::Peak => "peak",
            Measure::Allocated => "allocated",
            Measure::Released => "released",
            Measure::Temporary => "temporary",
        }
    }

    /// This one of a site's.
    pub fn of(self, measures: &Measures) -> Amount {
        match self {
            Measure::Live => measures.live,
            Measure::Peak => measures.peak,
            Measure::Allocated => measures.allocated,
            Measure::Released => measures.released,
            Measure::Temporary => measures.temporary,
        }
    }
}

impl FromStr for Measure {
    type Err = String;

    fn from_str(word: &str) -> Result<Measure, String> {
        let found = Measure::ALL.into_iter().find(|m| m.name() == word);
        found.ok_or_else(|| {
            let names = Measure::ALL.map(Measure::name).join(", ");
            format!("unknown measure {word}: use one of {names}")
        })
    }
}

/// Bytes or blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// Bytes as asked for.
    #[default]
    Bytes,
    /// Blocks.
    Blocks,
}

impl Unit {
    /// The word on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Bytes => "bytes",
            Unit::Blocks => "blocks",
        }
    }

    /// This one of an amount.
    pub fn of(self, amount: Amount) -> u64 {
        match self {
            Unit::Bytes => amount.bytes,
            Unit::Blocks => amount.blocks,
        }
    }
}

/// What to count. Formats that hold several measures (pprof, heaptrack, html) hold them all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportOptions {
    /// What is counted.
    pub measure: Measure,
    /// Bytes or blocks.
    pub unit: Unit,
    /// Compress with gzip; pprof always is. heaptrack_print goes by the end of the file's name, `.gz`.
    pub gzip: bool,
}

impl ExportOptions {
    /// The value of a site.
    pub fn of(&self, measures: &Measures) -> u64 {
        self.unit.of(self.measure.of(measures))
    }
}

/// Writes a profile.
///
/// # Errors
/// Those of `out`.
pub fn export(
    format: ExportFormat,
    profile: &Profile,
    options: &ExportOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    if options.gzip || format == ExportFormat::Pprof {
        let mut packed = BufWriter::new(GzEncoder::new(out, Compression::default()));
        write(format, profile, options, &mut packed)?;
        let packed = packed
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?;
        packed.finish()?;
        return Ok(());
    }
    let mut out = BufWriter::new(out);
    write(format, profile, options, &mut out)?;
    out.flush()
}

fn write(
    format: ExportFormat,
    profile: &Profile,
    options: &ExportOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    match format {
        ExportFormat::Folded => folded::write(profile, options, out),
        ExportFormat::Flamegraph => flamegraph::write(profile, options, out),
        ExportFormat::Pprof => pprof::write(profile, options, out),
        ExportFormat::Heaptrack => heaptrack::write(profile, out),
        ExportFormat::Speedscope => speedscope::write(profile, options, out),
        ExportFormat::Massif => massif::write(profile, out),
        ExportFormat::Html => view::write(profile, out),
    }
}
