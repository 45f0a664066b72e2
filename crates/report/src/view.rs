//! The page of `memhook-rs view`: one HTML file that contains its data, style and script.

mod asides;
mod calls;
mod columns;
mod editor;
mod packed;
mod pair;
mod scores;
mod serve;
mod sources;
mod space;

pub use editor::Editor;
pub use pair::beside;
pub use serve::{Server, address};
pub use sources::{are_sources_named, source_lines};

use crate::{Format, FormatOptions, Profile};
use base64::{Engine, engine::general_purpose::STANDARD};
use flate2::{Compression, write::GzEncoder};
use std::io::{BufWriter, Result, Write};

const PAGE: &str = include_str!("view/page.html");
const STYLES: [&str; 5] = [
    include_str!("view/colors.css"),
    include_str!("view/style.css"),
    include_str!("view/table.css"),
    include_str!("view/scores.css"),
    include_str!("view/space.css"),
];
/// Scripts, joined in this order, so that classes and constants are declared before their use.
const SCRIPTS: [&str; 41] = [
    include_str!("view/units.js"),
    include_str!("view/names.js"),
    include_str!("view/ticks.js"),
    include_str!("view/dom.js"),
    include_str!("view/palette.js"),
    include_str!("view/data.js"),
    include_str!("view/scores.js"),
    include_str!("view/compared.js"),
    include_str!("view/custom_scores.js"),
    include_str!("view/cells.js"),
    include_str!("view/history.js"),
    include_str!("view/ahead.js"),
    include_str!("view/wrappers.js"),
    include_str!("view/selection.js"),
    include_str!("view/search.js"),
    include_str!("view/tree.js"),
    include_str!("view/picture.js"),
    include_str!("view/sorting.js"),
    include_str!("view/rows.js"),
    include_str!("view/address.js"),
    include_str!("view/stacked.js"),
    include_str!("view/timeline.js"),
    include_str!("view/bands.js"),
    include_str!("view/flame.js"),
    include_str!("view/chunk_bins.js"),
    include_str!("view/chunks.js"),
    include_str!("view/space.js"),
    include_str!("view/space_details.js"),
    include_str!("view/space_files.js"),
    include_str!("view/walk.js"),
    include_str!("view/histogram.js"),
    include_str!("view/table.js"),
    include_str!("view/export.js"),
    include_str!("view/csv.js"),
    include_str!("view/long_list.js"),
    include_str!("view/stack_list.js"),
    include_str!("view/score_list.js"),
    include_str!("view/details.js"),
    include_str!("view/keys.js"),
    include_str!("view/controls.js"),
    include_str!("view/main.js"),
];

/// Compression level. With higher levels, a page is a few percent smaller, but compression then
/// dominates the time for writing the page.
const LEVEL: u32 = 3;

/// One self-contained page.
pub struct Html;

impl Format<Profile> for Html {
    fn name(&self) -> &'static str {
        "html"
    }

    fn write(&self, profile: &Profile, options: &FormatOptions, out: &mut dyn Write) -> Result<()> {
        let packed = GzEncoder::new(Vec::new(), Compression::new(LEVEL));
        // The encoder is slow if it gets a few bytes at a time.
        let mut packed = BufWriter::with_capacity(1 << 16, packed);
        columns::write(profile, options.editor.as_ref(), &mut packed)?;
        let data = STANDARD.encode(packed.into_inner()?.finish()?);
        let title = format!("{} ({})", profile.target.name, profile.target.pid);
        let title = title.replace('&', "&amp;").replace('<', "&lt;");
        let parts = [
            ("<!--TITLE-->", &[title.as_str()][..]),
            ("/*STYLE*/", &STYLES),
            ("<!--DATA-->", &[&data]),
            ("/*SCRIPT*/", &SCRIPTS),
        ];
        fill(PAGE, &parts, out)
    }
}

/// Writes the page with these parts in place of the placeholders. Each placeholder occurs once, in
/// this order. The inserted parts are not searched for placeholders.
pub(crate) fn fill(
    page: &str,
    parts: &[(&str, &[&str])],
    out: &mut (impl Write + ?Sized),
) -> Result<()> {
    let mut rest = page;
    for (placeholder, parts) in parts {
        let (before, after) = rest.split_once(placeholder).unwrap_or((rest, ""));
        out.write_all(before.as_bytes())?;
        for part in *parts {
            out.write_all(part.as_bytes())?;
        }
        rest = after;
    }
    out.write_all(rest.as_bytes())
}
