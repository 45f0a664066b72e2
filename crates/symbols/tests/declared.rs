//! Variables and types of a program, read from intact and from damaged debug information.

use memhook_symbols::{
    DeclaredFiles, DeclaredKind, DeclaredTypes, ModuleFile, SearchPath, TypeId, TypeRef,
};
use object::{Object, ObjectSection, ObjectSymbol};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

const BASE: u64 = 0x5555_0000_0000;

/// Builds the program with these flags, and returns its bytes.
fn program(flags: &[&str]) -> Vec<u8> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!(
        "declared-{}-{}",
        std::process::id(),
        NUMBER.fetch_add(1, Relaxed)
    );
    let to = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let status = Command::new("c++")
        .args(["-std=c++17", "-g", "-O1"])
        .args(flags)
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/programs/declared.cc"
        ))
        .arg("-o")
        .arg(&to)
        .status();
    assert!(status.expect("a compiler").success());
    let bytes = std::fs::read(&to).expect("the program");
    std::fs::remove_file(&to).expect("removed");
    bytes
}

fn files(bytes: Vec<u8>) -> DeclaredFiles {
    let module = ModuleFile {
        path: "/p".into(),
        image: Some(Arc::new(bytes)),
        base: BASE,
        start: BASE,
        end: BASE + (1 << 30),
        ..ModuleFile::default()
    };
    DeclaredFiles::open(vec![module], &SearchPath::default())
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

/// Returns the type of a field.
fn of_field(types: &mut DeclaredTypes, of: TypeId, number: usize) -> (u64, TypeId) {
    let DeclaredKind::Structure(fields) = types.get(of).kind.clone() else {
        panic!("{} is no structure", types.get(of).name);
    };
    let field = fields[number];
    (field.offset, types.resolve(field.of).expect("its type"))
}

fn pointee(types: &mut DeclaredTypes, of: TypeId) -> TypeId {
    let DeclaredKind::Pointer(Some(to)) = types.get(of).kind else {
        panic!("{:?} is no pointer", types.get(of));
    };
    types.resolve(to).unwrap_or_else(|| panic!("{to:?}"))
}

#[test]
fn variables_have_their_types() {
    for flags in [
        &["-gdwarf-5"][..],
        &["-gdwarf-4"],
        &["-fdebug-types-section"],
    ] {
        let bytes = program(flags);
        let elf = object::File::parse(&bytes[..]).expect("an ELF file");
        let mut addresses = BTreeMap::new();
        for symbol in elf.symbols() {
            let name = memhook_symbols::demangle(symbol.name().unwrap_or_default());
            addresses.insert(name, symbol.address() + BASE);
        }
        let files = files(bytes.clone());
        let sections = files.read(u64::MAX);
        let mut types = DeclaredTypes::of(&sections, soon());
        assert!(types.unread().is_none());
        let of = |types: &mut DeclaredTypes, name: &str| {
            let address = addresses.get(name).expect(name);
            let variable = types.variables().iter().find(|v| v.address == *address);
            let of = variable
                .unwrap_or_else(|| panic!("{name} with {flags:?}"))
                .of;
            types.resolve(of).expect("its type")
        };
        let nodes = of(&mut types, "app::nodes");
        let node = pointee(&mut types, nodes);
        let found = types.get(node);
        assert_eq!((found.name.as_str(), found.bytes), ("app::Node", 144));
        let (offset, base) = of_field(&mut types, node, 0);
        assert_eq!((offset, types.get(base).name.as_str()), (0, "app::Base"));
        let (offset, next) = of_field(&mut types, node, 1);
        assert_eq!((offset, pointee(&mut types, next)), (8, node));
        let (offset, points) = of_field(&mut types, node, 2);
        let DeclaredKind::Array(point, Some(4)) = types.get(points).kind else {
            panic!("{:?}", types.get(points));
        };
        let point = types.resolve(point).expect("a type");
        assert_eq!((offset, types.get(point).name.as_str()), (16, "app::Point"));
        let at = |types: &mut DeclaredTypes, wanted: u64| {
            let fields = (0..8).map(|number| of_field(types, node, number));
            let found = fields.into_iter().find(|&(offset, _)| offset == wanted);
            found.expect("a field").1
        };
        let either = at(&mut types, 88);
        assert!(matches!(types.get(either).kind, DeclaredKind::Opaque));
        let map = at(&mut types, 96);
        let name = "std::map<std::__cxx11::basic_string<char";
        assert!(types.get(map).name.starts_with(name) && types.get(map).bytes == 48);
        let arguments = types.get(map).arguments.clone();
        let vector = types.resolve(arguments[1].expect("a type")).expect("known");
        let name = &types.get(vector).name;
        assert!(
            name.starts_with("std::vector<app::Node*"),
            "{name} {flags:?}"
        );
        let alias = of(&mut types, "app::alias");
        assert_eq!(pointee(&mut types, alias), node);
        let declared = of(&mut types, "app::declared");
        let declared = pointee(&mut types, declared);
        assert_eq!(types.get(declared).name, "app::Declared");
        let first = of(&mut types, "app::Holder<app::Point>::first");
        let holder = pointee(&mut types, first);
        assert_eq!(types.get(holder).name, "app::Holder<app::Point>");
        let only = of(&mut types, "app::holder()::only");
        assert_eq!(pointee(&mut types, only), holder);
        let hidden = of(&mut types, "(anonymous namespace)::hidden");
        let hidden = pointee(&mut types, hidden);
        assert_eq!(types.get(hidden).name, "(anonymous namespace)::Hidden");
        let numbers = of(&mut types, "app::numbers");
        assert!(matches!(
            types.get(numbers).kind,
            DeclaredKind::Array(_, Some(15))
        ));
        // A class is found by a demangler's name.
        assert_eq!(types.by_name("app::Holder<app::Point>"), Some(holder));
        assert_eq!(types.by_name("app::Nothing"), None);
        let bases: Vec<bool> = [base, node].map(|t| types.is_beginning(t)).to_vec();
        assert_eq!(bases, [true, false]);
    }
}

#[test]
fn what_takes_too_much_is_left_out_and_said() {
    let bytes = program(&["-gdwarf-5"]);
    let files = files(bytes);
    let sections = files.read(1000);
    assert_eq!(sections.left_out().len(), 1);
    assert!(
        sections.left_out()[0].contains("/p"),
        "{:?}",
        sections.left_out()
    );
    assert!(DeclaredTypes::of(&sections, soon()).variables().is_empty());
    let sections = files.read(u64::MAX);
    let late = DeclaredTypes::of(&sections, Instant::now());
    assert!(late.unread().is_some() || !late.variables().is_empty());
}

/// Reads everything to which variables lead.
fn read_all(bytes: Vec<u8>) {
    let files = files(bytes);
    let sections = files.read(u64::MAX);
    let mut types = DeclaredTypes::of(&sections, soon());
    let variables = types.variables().to_vec();
    let mut waiting: Vec<TypeRef> = variables.iter().map(|v| v.of).collect();
    let mut seen = std::collections::HashSet::new();
    while let Some(at) = waiting.pop() {
        let Some(id) = types.resolve(at).filter(|&id| seen.insert(id)) else {
            continue;
        };
        types.is_beginning(id);
        let found = types.get(id).clone();
        types.by_name(&found.name);
        waiting.extend(found.arguments.into_iter().flatten());
        match found.kind {
            DeclaredKind::Pointer(to) => waiting.extend(to),
            DeclaredKind::Array(of, _) => waiting.push(of),
            DeclaredKind::Structure(fields) => waiting.extend(fields.iter().map(|f| f.of)),
            DeclaredKind::Plain | DeclaredKind::Opaque => {}
        }
    }
}

#[test]
fn damage_costs_only_types() {
    let bytes = program(&["-gdwarf-5"]);
    let elf = object::File::parse(&bytes[..]).expect("an ELF file");
    let ranges: Vec<(u64, u64)> = [".debug_info", ".debug_abbrev", ".debug_str"]
        .iter()
        .filter_map(|name| elf.section_by_name(name)?.file_range())
        .collect();
    assert_eq!(ranges.len(), 3);
    // The generator from Numerical Recipes causes the same damage each time.
    let mut random = 1u64;
    let mut next = |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for round in 0..400 {
        let mut damaged = bytes.clone();
        for _ in 0..1 + round % 40 {
            let (start, size) = ranges[next(3) as usize];
            let at = start + next(size);
            damaged[at as usize] = next(256) as u8;
        }
        read_all(damaged);
    }
    // The section ends in the middle of an entry.
    let (start, size) = ranges[0];
    for part in 1..20 {
        let mut cut = bytes.clone();
        cut[(start + size * part / 20) as usize..(start + size) as usize].fill(0xff);
        read_all(cut);
    }
}
