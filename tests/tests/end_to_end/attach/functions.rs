//! Every hooked function, and leaks through indirect calls.

use memhook_tests::{build_library, build_target, expect_sites, trace};

/// Blocks planted by all_functions.cc.
const PLANTED: [(&str, &str, u64, u64); 18] = [
    ("plant_malloc", "malloc", 3, 101),
    ("plant_calloc", "calloc", 4, 105),
    ("plant_realloc", "realloc", 5, 1001),
    ("plant_reallocarray", "reallocarray", 6, 143),
    ("plant_memalign", "memalign", 7, 107),
    ("plant_aligned_alloc", "aligned_alloc", 8, 128),
    ("plant_valloc", "valloc", 2, 109),
    ("plant_pvalloc", "pvalloc", 2, 110),
    ("plant_new", "new", 9, 111),
    ("plant_new_array", "new[]", 10, 112),
    ("plant_new_nothrow", "new", 11, 113),
    ("plant_new_array_nothrow", "new[]", 12, 114),
    ("plant_new_aligned", "new", 13, 115),
    ("plant_new_array_aligned", "new[]", 14, 116),
    ("plant_new_aligned_nothrow", "new", 15, 117),
    ("plant_new_array_aligned_nothrow", "new[]", 16, 118),
    ("plant_posix_memalign", "posix_memalign", 17, 119),
    ("plant_zero", "malloc", 1, 0),
];

#[test]
fn every_function_is_recorded_and_behaves() {
    let program = build_target("all_functions", &[]);
    // The second run uses the wrappers for skipped calls.
    for options in [vec![], vec!["--size", "0.."]] {
        let report = trace(&program, &options);
        expect_sites(&report, "all_functions.cc", &PLANTED);
        assert_eq!(report["totals"]["unknown_releases"], 0);
        assert_eq!(report["totals"]["unhooked_releases"], 0);
        assert_eq!(report["totals"]["truncated_stacks"], 0);
    }
}

/// Checks that the result does not depend on the binding of the calls: slots resolved at the first
/// call, slots resolved at startup and made read-only, or fixed addresses.
#[test]
fn every_function_however_it_is_bound() {
    for flags in [
        ["-Wl,-z,lazy", "-Wl,-z,norelro"],
        ["-Wl,-z,now", "-Wl,-z,relro"],
        ["-no-pie", "-fno-plt"],
    ] {
        let program = build_target("all_functions", &flags);
        let report = trace(&program, &[]);
        expect_sites(&report, "all_functions.cc", &PLANTED);
        for field in ["unknown_releases", "unhooked_releases"] {
            assert_eq!(
                report["totals"][field], 0,
                "{flags:?}: {}",
                report["totals"]
            );
        }
    }
}

#[test]
fn an_address_that_is_the_programs_own_plt() {
    let name = "libaddress_taken.so";
    let library = build_library("address_taken", name, &["-DLIBRARY"]);
    let (path, folder) = (library.to_str(), library.parent().and_then(|f| f.to_str()));
    let runpath = format!("-Wl,-rpath,{}", folder.expect("UTF-8"));
    let linked = [path.expect("UTF-8"), &runpath];
    for flags in [
        ["-no-pie", "-fno-pie", "-Wl,-z,lazy"],
        ["-no-pie", "-fno-pie", "-Wl,-z,now"],
        ["-pie", "-fPIE", "-Wl,-z,lazy"],
    ] {
        let program = build_target("address_taken", &[&flags[..], &linked].concat());
        let report = trace(&program, &[]);
        let planted = [
            ("by_address", "malloc", 3, 100),
            ("plant_by_address", "malloc", 4, 200),
            ("plant", "malloc", 5, 300),
        ];
        expect_sites(&report, "address_taken.cc", &planted);
        let totals = &report["totals"];
        for field in ["unknown_releases", "unhooked_releases"] {
            assert_eq!(totals[field], 0, "{flags:?}: {totals}");
        }
        assert_eq!(totals["allocations"], 15, "{flags:?}: {totals}");
        assert_eq!(totals["releases"], 3, "{flags:?}: {totals}");
    }
}

/// Checks that a variable counts as a slot only while it contains malloc's address.
#[test]
fn what_the_program_has_stored_stays() {
    let report = trace(&build_target("stored_pointers", &["-fPIE", "-pie"]), &[]);
    let planted = [("by_pointer", "malloc", 1, 77)];
    expect_sites(&report, "stored_pointers.cc", &planted);
}

const LEAKS: [(&str, &str, u64, u64); 7] = [
    ("leak_by_growing", "realloc", 1, 4999),
    ("leak_in_other_thread", "realloc", 1, 777),
    ("leak_by_strdup", "malloc", 12, 24),
    // vasprintf trims its buffer by realloc.
    ("leak_by_asprintf", "realloc", 1, 201),
    // glibc starts with space for 120 characters.
    ("leak_by_getline", "malloc", 3, 120),
    ("leak_by_table", "malloc", 10, 333),
    ("leak_in_handler", "malloc", 20, 55),
];

#[test]
fn leaks_by_realloc_strdup_pointers_and_handlers() {
    let program = build_target("leaks", &[]);
    // The depth includes the additional frames of a signal handler.
    let report = trace(&program, &["--depth", "24"]);
    expect_sites(&report, "leaks.cc", &LEAKS);
    assert_eq!(report["totals"]["unknown_releases"], 0);
}

#[test]
fn blocks_from_before_the_attach_are_counted_apart() {
    let program = build_target("before_attach", &[]);
    let report = trace(&program, &[]);
    expect_sites(&report, "before_attach.cc", &[("main", "realloc", 1, 4000)]);
    assert_eq!(report["totals"]["unknown_releases"], 401);
}

#[test]
fn exceptions_pass_through() {
    let program = build_target("exceptions", &[]);
    let report = trace(&program, &[]);
    expect_sites(
        &report,
        "exceptions.cc",
        &[("leak_after_throw", "new", 10, 77)],
    );
}

#[test]
fn size_filters_leave_out_both_ends() {
    let program = build_target("all_functions", &[]);
    for (options, expected) in [
        (
            vec!["--size", "119..143"],
            vec![
                ("plant_aligned_alloc", "aligned_alloc", 8, 128),
                ("plant_posix_memalign", "posix_memalign", 17, 119),
                ("plant_reallocarray", "reallocarray", 6, 143),
            ],
        ),
        (
            vec!["--size", "101,1001"],
            vec![
                ("plant_malloc", "malloc", 3, 101),
                ("plant_realloc", "realloc", 5, 1001),
            ],
        ),
    ] {
        let report = trace(&program, &options);
        expect_sites(&report, "all_functions.cc", &expected);
        assert_eq!(report["totals"]["unknown_releases"], 0, "{report}");
    }
}

#[test]
fn a_subset_of_functions() {
    let program = build_target("all_functions", &[]);
    let report = trace(&program, &["--set", "functions=calloc,free"]);
    expect_sites(
        &report,
        "all_functions.cc",
        &[("plant_calloc", "calloc", 4, 105)],
    );
}
