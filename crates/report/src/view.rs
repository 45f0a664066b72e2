//! The page of `memhook-rs view`: one HTML file with its data, style and script in it.

mod columns;
mod serve;
mod sources;

pub use serve::{Server, address};
pub use sources::{are_sources_named, source_lines};

use crate::{Format, FormatOptions, Profile};
use base64::{Engine, engine::general_purpose::STANDARD};
use flate2::{Compression, write::GzEncoder};
use std::io::{BufWriter, Result, Write};

const PAGE: &str = include_str!("view/page.html");
const STYLE: &str = include_str!("view/style.css");
/// In this order one script: later files use what earlier ones declare.
const SCRIPTS: [&str; 9] = [
    include_str!("view/units.js"),
    include_str!("view/data.js"),
    include_str!("view/selection.js"),
    include_str!("view/tree.js"),
    include_str!("view/timeline.js"),
    include_str!("view/flame.js"),
    include_str!("view/table.js"),
    include_str!("view/details.js"),
    include_str!("view/main.js"),
];

/// Higher levels make a page a few percent smaller, and take most of the time that it costs.
const LEVEL: u32 = 3;

/// One self-contained page.
pub struct Html;

impl Format<Profile> for Html {
    fn name(&self) -> &'static str {
        "html"
    }

    fn write(&self, profile: &Profile, _: &FormatOptions, out: &mut dyn Write) -> Result<()> {
        let packed = GzEncoder::new(Vec::new(), Compression::new(LEVEL));
        // The encoder is slow where it gets a few bytes at a time.
        let mut packed = BufWriter::with_capacity(1 << 16, packed);
        serde_json::to_writer(&mut packed, &columns::Columns::new(profile))?;
        let data = STANDARD.encode(packed.into_inner()?.finish()?);
        let title = format!("{} ({})", profile.target.name, profile.target.pid);
        let title = title.replace('&', "&amp;").replace('<', "&lt;");
        // Each placeholder is there once; what is put in is not looked at again.
        let mut rest = PAGE;
        for (placeholder, parts) in [
            ("<!--TITLE-->", &[title.as_str()][..]),
            ("/*STYLE*/", &[STYLE]),
            ("<!--DATA-->", &[&data]),
            ("/*SCRIPT*/", &SCRIPTS),
        ] {
            let (before, after) = rest.split_once(placeholder).unwrap_or((rest, ""));
            out.write_all(before.as_bytes())?;
            for part in parts {
                out.write_all(part.as_bytes())?;
            }
            rest = after;
        }
        out.write_all(rest.as_bytes())
    }
}
