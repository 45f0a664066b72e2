//! LAYOUT.md describes the memory that the hook and the attacher share, and must change whenever
//! that memory's layout does. (The tests of `crates/recording` compare the recording's FORMAT.md
//! with the code.)

use super::{read, table};

const PAGE: &str = "crates/abi/LAYOUT.md";
const HEADER: &str = "hook-cxx/abi.hpp";

/// Computes an FNV-1a hash, which detects changes and needs no library.
fn fingerprint(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// Returns the value of `inline constexpr uint64_t NAME = 0x...;`.
fn constant(header: &str, name: &str) -> u64 {
    let start = format!(" {name} = 0x");
    let value = header
        .split(&start)
        .nth(1)
        .and_then(|v| v.split(';').next());
    let value = value.unwrap_or_else(|| panic!("{HEADER} has no {name}"));
    u64::from_str_radix(value, 16).expect("hexadecimal")
}

/// Returns the names and sizes of the structures.
fn structures(header: &str) -> Vec<(String, String)> {
    let asserted = header.split("static_assert(sizeof(").skip(1);
    let sizes = asserted.filter_map(|text| {
        let (name, rest) = text.split_once(") == ")?;
        Some((name.to_owned(), rest.split_once(')')?.0.to_owned()))
    });
    sizes.collect()
}

fn unquoted(cell: &str) -> String {
    cell.trim_matches('`').to_owned()
}

#[test]
fn areas_are_those_of_the_page() {
    let header = read(HEADER);
    let rows = table(&read(PAGE), "Areas");
    assert_eq!(unquoted(&rows[0][0]), "0", "the control block comes first");
    let mut last = 0;
    for row in &rows[1..] {
        let offset = constant(&header, &unquoted(&row[0]));
        assert!(offset > last, "{PAGE}: {} is not in order", row[0]);
        last = offset;
    }
    assert_eq!(
        last,
        constant(&header, "rings_offset"),
        "the rings come last"
    );
}

#[test]
fn structures_are_those_of_the_page() {
    let rows = table(&read(PAGE), "Structures");
    let page: Vec<_> = rows
        .iter()
        .map(|row| (unquoted(&row[0]), row[1].clone()))
        .collect();
    assert_eq!(page, structures(&read(HEADER)), "{PAGE}");
}

#[test]
fn nothing_changes_without_the_page() {
    let (header, page) = (read(HEADER), read(PAGE));
    let version = constant(&header, "abi_version_value");
    let rows = table(&page, "Version");
    let of = |name: &str| {
        let row = rows.iter().find(|row| unquoted(&row[0]) == name);
        unquoted(&row.unwrap_or_else(|| panic!("{PAGE} does not state {name}"))[1])
    };
    assert_eq!(of("ABI_VERSION"), version.to_string(), "{PAGE}");
    let found = fingerprint(&header);
    assert_eq!(
        of("fingerprint"),
        found,
        "the shared layout has changed: raise ABI_VERSION, describe the change in {PAGE}, and put {found} there"
    );
}
