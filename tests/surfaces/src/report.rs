//! JSON reports that are read back, and what is made of them.

use memhook_report::{
    ExportFormat, ExportOptions, Measure, Style, diff, export, read_back as read,
};

/// Compares a report with itself and writes it in every format.
pub fn read_back(bytes: &[u8]) {
    for measure in [Measure::Live, Measure::Allocated] {
        let Ok(profile) = read(bytes, measure) else {
            continue;
        };
        let changes = diff(&profile, &profile, measure, 10);
        changes.text(Style::default());
        let options = ExportOptions {
            measure,
            ..ExportOptions::default()
        };
        for format in ExportFormat::ALL {
            let mut out = Vec::new();
            export(format, &profile, &options, &mut out).expect("written to memory");
        }
    }
}
