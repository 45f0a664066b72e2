//! Text files from /proc, and text files that users write for the gate.

use memhook_gate::{AllocationSite, Baseline, SourceFrame, Sum, Suppressions};

/// Reads the input as every supported file of /proc.
pub fn proc_text(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    memhook_process::fuzzing::proc_text(&text);
    memhook_heap::fuzzing::proc_text(&text);
}

fn site() -> AllocationSite {
    let frame = |function: &str| SourceFrame {
        function: Some(function.into()),
        file: Some("src/a.cc".into()),
        module: Some("/usr/lib/libfoo.so.1".into()),
        ..SourceFrame::default()
    };
    AllocationSite {
        symbol: Some("malloc".into()),
        kind: "malloc".into(),
        stack: ["make(int)", "Widget::grow()", "main"].map(frame).to_vec(),
        ..AllocationSite::default()
    }
}

/// Reads suppressions in the formats of LeakSanitizer and Valgrind.
pub fn suppressions(bytes: &[u8]) {
    let mut all = Suppressions::default();
    if all.read("x", &String::from_utf8_lossy(bytes)).is_ok() {
        all.suppresses(&site());
        all.unused();
    }
}

/// Reads a baseline. Checks that writing and reading it preserves it.
pub fn baseline(bytes: &[u8]) {
    let Ok(read) = Baseline::read("x", &String::from_utf8_lossy(bytes)) else {
        return;
    };
    let again = Baseline::read("x", &read.write().expect("serialized")).expect("our own text");
    assert_eq!(again, read);
    let most = Sum {
        blocks: u64::MAX,
        bytes: u64::MAX,
    };
    read.covers(&site().identity(), most, f64::MAX);
    let all = read.clone().or_more(read.clone());
    assert_eq!(all, read);
}
