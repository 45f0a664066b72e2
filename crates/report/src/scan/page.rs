//! The page of `scan --retained`: one HTML file that contains its data, style and script.

use super::RetainedReport;
use crate::view::fill;
use std::io::{Result, Write};

const PAGE: &str = include_str!("page/page.html");
const STYLES: [&str; 2] = [
    include_str!("../view/colors.css"),
    include_str!("page/page.css"),
];
const SCRIPTS: [&str; 2] = [
    include_str!("../view/units.js"),
    include_str!("page/page.js"),
];

impl RetainedReport {
    /// Writes the page.
    pub fn write_page(&self, out: &mut impl Write) -> Result<()> {
        // Otherwise a name could end the element that contains the data.
        let data = serde_json::to_string(self)?.replace('<', "\\u003c");
        let title = format!("What retains the heap of process {}", self.pid);
        let parts = [
            ("<!--TITLE-->", &[title.as_str()][..]),
            ("/*STYLE*/", &STYLES),
            ("<!--DATA-->", &[&data]),
            ("/*SCRIPT*/", &SCRIPTS),
        ];
        fill(PAGE, &parts, out)
    }
}
