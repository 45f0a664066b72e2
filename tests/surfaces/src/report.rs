//! JSON reports that are read back, and what is made of them.

use memhook_report::{
    Document, FormatOptions, Measure, Style, diff,
    formats::{EXPORTS, write},
    read_back as read,
};

/// Compares a report with itself and writes it in every format.
pub fn read_back(bytes: &[u8]) {
    for measure in [Measure::Live, Measure::Allocated] {
        let Ok(profile) = read(bytes, measure) else {
            continue;
        };
        let changes = diff(&profile, &profile, measure, 10);
        changes.text(Style::default());
        let options = FormatOptions {
            measure,
            ..FormatOptions::default()
        };
        for format in EXPORTS {
            let mut out = Vec::new();
            write(format, &profile, &options, &mut out).expect("written to memory");
        }
    }
}
