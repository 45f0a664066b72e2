//! Profiles in pprof's format from any source.

use memhook_report::recorded::NameSources;
use memhook_report::{
    Amount, Measures, PprofNames, PprofShape, Profile, ProfileFrame, ProfileModule, ProfileSite,
    StackFrame, StoredPprof, pprof,
};
use proptest::prelude::*;
use std::io::Write;

/// Returns a finder that finds no names, regardless of the profile's paths.
fn names() -> PprofNames {
    PprofNames::new(NameSources {
        sysroots: vec!["/proc/self/no-such-root".into()],
        ..NameSources::default()
    })
}

/// Returns a profile of one module without names and one with names.
fn profile(addresses: &[u64], bytes: &[u64]) -> Profile {
    let module = |path: &str, build_id: &str| ProfileModule {
        path: path.to_owned(),
        build_id: build_id.to_owned(),
        start: 0x7000_0000,
        end: 0x7100_0000,
        bias: 0x7000_0000,
    };
    let frame = |&address: &u64| ProfileFrame {
        address,
        module: Some(u32::from(address % 2 == 0)),
        frame: StackFrame {
            address: format!("{address:#x}"),
            module: Some("m".into()),
            offset: Some("0x0".into()),
            function: (address % 2 == 0).then(|| format!("f{address}()")),
            file: None,
            line: None,
            inlined: false,
        },
    };
    let frames: Vec<ProfileFrame> = addresses.iter().map(frame).collect();
    let site = |(at, &bytes): (usize, &u64)| ProfileSite {
        stack: (at % frames.len()) as u32,
        kind: "malloc".into(),
        measures: Measures {
            live: Amount {
                blocks: 1,
                bytes,
                ..Amount::default()
            },
            ..Measures::default()
        },
        ..ProfileSite::default()
    };
    Profile {
        modules: vec![module("/bin/a", "0123456789"), module("python", "")],
        unnamed_modules: [0].into(),
        sites: bytes.iter().enumerate().map(site).collect(),
        stacks: (0..frames.len() as u32)
            .map(|i| (i..frames.len() as u32).collect())
            .collect(),
        frames,
        ..Profile::default()
    }
}

fn packed(plain: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(plain).expect("memory");
    packed.finish().expect("memory")
}

proptest! {
    /// Addresses without names keep all their fields, and are reported.
    #[test]
    fn nothing_changes_without_names(
        addresses in prop::collection::vec(0x7000_0001_u64..0x7100_0000, 1..40),
        bytes in prop::collection::vec(1_u64..1 << 40, 1..40),
    ) {
        let written = pprof(&profile(&addresses, &bytes), &PprofShape::default());
        let before = StoredPprof::read(&packed(&written)).expect("ours");
        let mut after = StoredPprof::read(&written).expect("not packed");
        prop_assert_eq!(&before, &after);
        let added = names().add_to(&mut after);
        let odd: std::collections::BTreeSet<u64> =
            addresses.iter().copied().filter(|address| address % 2 == 1).collect();
        // The profile contains only stacks that sites refer to.
        prop_assert!(added.nameless <= addresses.len() && added.named == 0);
        prop_assert_eq!(added.not_found.is_empty(), added.nameless == 0);
        prop_assert!(!odd.is_empty() || added.nameless == 0);
        prop_assert_eq!(&before, &after);
        let again = StoredPprof::read(&after.to_gzip().expect("memory")).expect("ours");
        prop_assert_eq!(before, again);
    }

    /// Arbitrary bytes are refused, or read without an error.
    #[test]
    fn changed_bytes_do_no_harm(
        addresses in prop::collection::vec(0x7000_0001_u64..0x7100_0000, 1..10),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..20),
        cut in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
        is_packed in any::<bool>(),
    ) {
        let mut bytes = pprof(&profile(&addresses, &[7, 8, 9]), &PprofShape::default());
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if is_cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let bytes = if is_packed { packed(&bytes) } else { bytes };
        if let Ok(mut read) = StoredPprof::read(&bytes) {
            let before = StoredPprof::read(&bytes).expect("as before");
            names().add_to(&mut read);
            prop_assert_eq!(before, read);
        }
    }

    #[test]
    fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = StoredPprof::read(&bytes);
        let _ = StoredPprof::read(&packed(&bytes));
    }
}

/// The inputs are a small file that unpacks to more bytes than fit into any machine's memory, and a
/// file of countless empty samples.
#[test]
fn what_is_too_large_is_refused() {
    let bomb = packed(&vec![0; 65 << 20]);
    let samples = packed(&[0x12, 0].repeat(5 << 20));
    let modules = packed(&[&[0x1a, 0].repeat(5000)[..], &[0x32, 0]].concat());
    for bytes in [bomb, samples, modules] {
        let refused = StoredPprof::read(&bytes).expect_err("refused");
        let text = refused.to_string();
        assert!(text.contains("larger than a profile may be"), "{text}");
    }
}
