//! Checks that the report consists of numbers. If the hook followed a word of the report, any process that shares the
//! report could choose the addresses that the attached process calls, reads or writes. A child with fewer privileges
//! could do so too.

use crate::layout::*;

/// Words that suggest an address or offset, in the names and docs of fields.
const LEADING: [&str; 9] = [
    "address", "avma", "pointer", "offset", "frame", "bound", "function", "table", "rule",
];

/// Fields of the report with such words, and the reasons why they are not followed.
const NUMBERS: [(&str, &str); 17] = [
    ("Tally.stack_count", "counts"),
    ("Tally.stacks_dropped", "counts"),
    (
        "Tally.look_address",
        "the attacher watches it, within its own checks; the hook never reads it",
    ),
    (
        "AccessRecord.address",
        "compared, and looked up in the hook's own index",
    ),
    ("AccessRecord.low", "counted, never added to an address"),
    ("AccessRecord.high", "counted, never added to an address"),
    ("AccessRecord.thread", "compared"),
    ("AccessRecord.last_writer", "compared"),
    ("AccessRecord.last_write", "compared"),
    (
        "RingHeader.outer",
        "compared with frames, never read through",
    ),
    (
        "RingHeader.thread_pointer",
        "the attacher compares it with mappings of the process",
    ),
    (
        "RingHeader.first_sp",
        "the attacher compares it with mappings of the process",
    ),
    (
        "RingHeader.described_frames",
        "compared with frames, never read through",
    ),
    (
        "RingHeader.granted_caches",
        "a choice between sizes that the hook has",
    ),
    ("StackEntry.hash", "compared"),
    (
        "StackEntry.depth",
        "bounded by [`MAX_DEPTH`] where it is used",
    ),
    (
        "StackEntry.function",
        "the attacher looks for a function's name by it, if there is one",
    ),
];

fn structures() -> [(&'static str, Part, &'static [Field]); 13] {
    macro_rules! all {
        ($($name:ident)*) => { [$((stringify!($name), $name::PART, $name::FIELDS)),*] };
    }
    all!(Control Tally AccessRecord SlotEntry ModuleEntry RingHeader StackBounds StackEntry PythonLayout MarkEntry
        ProbeConfig ProbeThread HookDescription)
}

fn is_called_leading(field: &Field) -> bool {
    let words = format!("{} {}", field.name, field.docs).to_lowercase();
    LEADING.iter().any(|word| words.contains(word))
}

#[test]
fn the_report_leads_nowhere() {
    let reported = structures()
        .into_iter()
        .filter(|(_, part, _)| *part == Part::Report);
    let mut leading = Vec::new();
    for (name, _, fields) in reported {
        leading.extend(
            fields
                .iter()
                .filter(|field| is_called_leading(field))
                .map(|field| format!("{name}.{}", field.name)),
        );
    }
    let known: Vec<_> = NUMBERS.iter().map(|(name, _)| name.to_string()).collect();
    let unknown: Vec<_> = leading
        .iter()
        .filter(|name| !known.contains(name))
        .collect();
    let gone: Vec<_> = known
        .iter()
        .filter(|name| !leading.contains(name))
        .collect();
    assert!(
        unknown.is_empty() && gone.is_empty(),
        "in the report, but called like something that leads somewhere: {unknown:?}; excused, but not there: {gone:?}"
    );
}

/// An [`Address`] in the report does not compile; this test shows that the type is used.
#[test]
fn addresses_are_in_the_guide() {
    let has_addresses = |fields: &[Field]| fields.iter().any(|f| f.rust_type == "Address");
    for (name, part, fields) in structures() {
        assert!(part != Part::Report || !has_addresses(fields), "{name}");
    }
    for name in ["Control", "SlotEntry", "ModuleEntry", "StackBounds"] {
        let found = structures().into_iter().find(|(n, ..)| *n == name);
        assert!(
            found.is_some_and(|(_, part, fields)| part == Part::Guide && has_addresses(fields))
        );
    }
}
