//! JSON reports and profiles from files, and results derived from them.

use memhook_report::{
    Document, FormatOptions, Measure, PprofNames, StoredPprof, Style, diff,
    formats::{EXPORTS, write},
    read_back as read,
    recorded::NameSources,
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

/// Reads a profile in pprof's format, and tries to add names, although none can be found. Checks
/// that the profile does not change.
pub fn stored_pprof(bytes: &[u8]) {
    let Ok(read) = StoredPprof::read(bytes) else {
        return;
    };
    let mut names = PprofNames::new(NameSources {
        sysroots: vec!["/proc/self/no-such-root".into()],
        ..NameSources::default()
    });
    let mut named = read.clone();
    let added = names.add_to(&mut named);
    assert_eq!(added.named, 0);
    assert_eq!(named, read);
    let packed = named.to_gzip().expect("written to memory");
    assert_eq!(StoredPprof::read(&packed).expect("our own"), read);
}
