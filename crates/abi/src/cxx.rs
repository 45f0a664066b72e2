//! Printer of the C++ version of the layout.

use crate::{event::Op, function_by_name, functions::HOOKED_FUNCTIONS, layout::*, unwind_rule};
use std::fmt::Write;

fn cxx_type(rust_type: &str) -> (&'static str, Option<&str>) {
    match rust_type {
        "u64" | "AtomicU64" | "Address" => ("uint64_t", None),
        "u32" | "AtomicU32" => ("uint32_t", None),
        "u16" => ("uint16_t", None),
        "u8" => ("uint8_t", None),
        array => {
            let count = array
                .trim_start_matches("[u64;")
                .trim_end_matches(']')
                .trim();
            ("uint64_t", Some(count))
        }
    }
}

fn print_struct(out: &mut String, name: &str, fields: &[Field], size: usize) {
    let _ = writeln!(out, "struct {name} {{");
    for field in fields {
        let (ty, count) = cxx_type(field.rust_type);
        let suffix = count.map_or(String::new(), |n| format!("[{n}]"));
        let _ = writeln!(out, "  {ty} {}{suffix};", field.name);
    }
    let _ = writeln!(out, "}};\nstatic_assert(sizeof({name}) == {size});");
    for field in fields {
        let _ = writeln!(
            out,
            "static_assert(__builtin_offsetof({name}, {}) == {});",
            field.name, field.offset
        );
    }
    out.push('\n');
}

/// Returns a function id; the forms of operator new are consecutive in the list.
fn id_of(name: &str) -> u64 {
    function_by_name(name).expect("a hooked function") as u64
}

/// Returns the text of `abi.hpp`: constants, structures with static assertions, and the list
/// of hooked functions as an X-macro `MEMHOOK_HOOKED_FUNCTIONS(X)` of `X(id, symbol,
/// Signature)`.
pub fn cxx_header() -> String {
    let mut out = String::from(
        "// Generated from crates/abi. Edit that, not this.\n#pragma once\n#include <stdint.h>\n\nnamespace memhook::abi {\n\n",
    );
    let constants: &[(&str, u64)] = &[
        ("guide_bytes", GUIDE_BYTES as u64),
        ("tally_offset", TALLY_OFFSET as u64),
        ("slot_states_offset", SLOT_STATES_OFFSET as u64),
        ("bounds_offset", BOUNDS_OFFSET as u64),
        ("bounds_shift", u64::from(BOUNDS_SHIFT)),
        ("magic_value", MAGIC),
        ("abi_version_value", u64::from(ABI_VERSION)),
        ("max_slots", MAX_SLOTS as u64),
        ("max_modules", MAX_MODULES as u64),
        ("max_variants", MAX_VARIANTS as u64),
        ("sequence_words", SEQUENCE_WORDS as u64),
        ("index_entries", INDEX_ENTRIES as u64),
        ("index_first_entries", INDEX_FIRST_ENTRIES as u64),
        ("arena_bytes", ARENA_BYTES as u64),
        ("granule_bytes", GRANULE_BYTES as u64),
        ("max_depth", MAX_DEPTH as u64),
        ("max_rings", MAX_RINGS as u64),
        ("ring_prefix_bytes", RING_PREFIX_BYTES as u64),
        ("ring_scratch_offset", RING_SCRATCH_OFFSET as u64),
        ("pc_cache_offset", PC_CACHE_OFFSET as u64),
        ("pc_cache_entries", PC_CACHE_ENTRIES as u64),
        ("pc_cache_first_entries", PC_CACHE_FIRST_ENTRIES as u64),
        ("memo_first_bytes", MEMO_FIRST_BYTES as u64),
        ("index_growth", GROWTH as u64),
        ("memo_offset", MEMO_OFFSET as u64),
        ("memo_guides_offset", MEMO_GUIDES_OFFSET as u64),
        ("memo_guides", MEMO_GUIDES as u64),
        ("memo_guide_bytes", MEMO_GUIDE_BYTES as u64),
        ("memo_header_bytes", MEMO_HEADER_BYTES as u64),
        ("memo_block_bytes", MEMO_BLOCK_BYTES as u64),
        ("max_rows", MAX_ROWS as u64),
        ("max_rules", MAX_RULES as u64),
        ("rules_offset", RULES_OFFSET as u64),
        ("row_offsets_offset", ROW_OFFSETS_OFFSET as u64),
        ("row_rules_offset", ROW_RULES_OFFSET as u64),
        ("filter_offset", FILTER_OFFSET as u64),
        ("filter_pages", FILTER_PAGES as u64),
        ("filter_table_offset", FILTER_TABLE_OFFSET as u64),
        ("first_entered_mark", u64::from(FIRST_ENTERED_MARK)),
        ("entered_marks", u64::from(ENTERED_MARKS)),
        ("first_unsure_mark", u64::from(FIRST_UNSURE_MARK)),
        ("unsure_marks", u64::from(UNSURE_MARKS)),
        ("filter_words", FILTER_WORDS as u64),
        ("filter_hash", FILTER_HASH),
        ("sample_offset", SAMPLE_OFFSET as u64),
        ("sample_quantiles", SAMPLE_QUANTILES as u64),
        ("mark_count", MARKS as u64),
        ("mark_by_program", MARK_BY_PROGRAM),
        ("slots_offset", SLOTS_OFFSET as u64),
        ("modules_offset", MODULES_OFFSET as u64),
        ("sequence_offset", SEQUENCE_OFFSET as u64),
        ("index_offset", INDEX_OFFSET as u64),
        ("arena_offset", ARENA_OFFSET as u64),
        ("access_offset", ACCESS_OFFSET as u64),
        ("access_records", ACCESS_RECORDS as u64),
        ("rings_offset", RINGS_OFFSET as u64),
        ("function_count", (FIRST_DESCRIBED + MAX_DESCRIBED) as u64),
        ("first_described", FIRST_DESCRIBED as u64),
        ("max_described", MAX_DESCRIBED as u64),
        ("max_heaps", MAX_HEAPS as u64),
        ("heap_windows", HEAP_WINDOWS as u64),
        ("described_offset", DESCRIBED_OFFSET as u64),
        ("windows_offset", WINDOWS_OFFSET as u64),
        ("key_bit", KEY_BIT),
        ("key_heap_shift", u64::from(KEY_HEAP_SHIFT)),
        ("key_window_shift", u64::from(KEY_WINDOW_SHIFT)),
        ("key_address_shift", u64::from(KEY_ADDRESS_SHIFT)),
        ("role_allocates", DescribedRole::Allocates as u64),
        ("role_releases", DescribedRole::Releases as u64),
        ("role_reallocates", DescribedRole::Reallocates as u64),
        ("success_zero", Success::Zero as u64),
        ("success_not_zero", Success::NotZero as u64),
        ("first_operator", id_of("_Znwm")),
        ("last_operator", id_of("_ZnamSt11align_val_tRKSt9nothrow_t")),
        ("first_shape", id_of("mi_malloc")),
        ("last_shape", id_of("mi_posix_memalign")),
        ("op_allocation", Op::Allocation as u64),
        ("op_release", Op::Release as u64),
        ("op_realloc_release", Op::ReallocRelease as u64),
        ("op_realloc_failed", Op::ReallocFailed as u64),
        ("op_tick", Op::Tick as u64),
        ("op_size_extension", Op::SizeExtension as u64),
        ("op_pair", Op::Pair as u64),
        ("op_sampling_change", Op::SamplingChange as u64),
        ("op_access", Op::Access as u64),
        ("op_call_time", Op::CallTime as u64),
        ("op_mapped", Op::Mapped as u64),
        ("op_unmapped", Op::Unmapped as u64),
        ("op_discarded", Op::Discarded as u64),
        ("slot_pending", u64::from(slot_state::PENDING)),
        ("slot_patched", u64::from(slot_state::PATCHED)),
        ("slot_changed", u64::from(slot_state::CHANGED)),
        ("slot_restored", u64::from(slot_state::RESTORED)),
        ("slot_refused", u64::from(slot_state::REFUSED)),
        ("clock_coarse", u64::from(clock_mode::COARSE)),
        ("clock_tsc", u64::from(clock_mode::TSC)),
        ("clock_monotonic", u64::from(clock_mode::MONOTONIC)),
        ("clock_attacher", u64::from(clock_mode::ATTACHER)),
        ("flag_release_stacks", u64::from(flags::RELEASE_STACKS)),
        ("flag_drop_when_full", u64::from(flags::DROP_WHEN_FULL)),
        ("flag_adapt_when_full", u64::from(flags::ADAPT_WHEN_FULL)),
        ("flag_budget", u64::from(flags::BUDGET)),
        ("passed_blocks", PASSED_BLOCKS as u64),
        ("passed_blocks_offset", FILTER_TABLE_OFFSET as u64),
        ("flag_size_filter", u64::from(flags::SIZE_FILTER)),
        ("flag_frame_pointers", u64::from(flags::FRAME_POINTERS)),
        ("flag_live_filter", u64::from(flags::LIVE_FILTER)),
        ("flag_sample", u64::from(flags::SAMPLE)),
        ("flag_check_memo", u64::from(flags::CHECK_MEMO)),
        ("flag_lone_recorder", u64::from(flags::LONE_RECORDER)),
        ("flag_accesses", u64::from(flags::ACCESSES)),
        ("flag_looks", u64::from(flags::LOOKS)),
        ("flag_call_times", u64::from(flags::CALL_TIMES)),
        ("flag_emits", u64::from(flags::EMITS)),
        ("flag_fold_pairs", u64::from(flags::FOLD_PAIRS)),
        ("cfa_stop", unwind_rule::STOP),
        ("cfa_rsp", unwind_rule::RSP),
        ("cfa_rbp", unwind_rule::RBP),
        ("cfa_at_rbp", unwind_rule::AT_RBP),
        ("cfa_plt", unwind_rule::PLT),
        ("cfa_signal", unwind_rule::SIGNAL),
        ("cfa_end", unwind_rule::END),
        ("cfa_made", unwind_rule::MADE),
        (
            "rule_made",
            unwind_rule::pack(unwind_rule::MADE, 16, unwind_rule::RBP_AT_CFA, -16),
        ),
        ("rbp_same", unwind_rule::RBP_SAME),
        ("rbp_at_cfa", unwind_rule::RBP_AT_CFA),
        ("rbp_at_rbp", unwind_rule::RBP_AT_RBP),
        ("description_magic_0", DESCRIPTION_MAGIC[0]),
        ("description_magic_1", DESCRIPTION_MAGIC[1]),
        ("description_version", u64::from(DESCRIPTION_VERSION)),
        ("any_loader_count", ANY_LOADER_COUNT),
        ("probe_arguments", PROBE_ARGUMENTS as u64),
        ("value_classes", VALUE_CLASSES as u64),
        ("value_bounds", VALUE_BOUNDS as u64),
        ("value_places", VALUE_PLACES as u64),
        ("value_table_bytes", VALUE_TABLE_BYTES as u64),
        ("stack_places", STACK_PLACES as u64),
        ("marks_offset", MARKS_OFFSET as u64),
        ("python_offset", PYTHON_OFFSET as u64),
        ("python_off", u64::from(python_state::OFF)),
        ("python_direct", u64::from(python_state::DIRECT)),
        ("python_increments", u64::from(python_lines::INCREMENTS)),
        ("python_ranges", u64::from(python_lines::RANGES)),
        ("python_byte", u64::from(python_instruction::BYTE)),
        ("python_unit", u64::from(python_instruction::UNIT)),
        ("python_every", u64::from(python_entry::EVERY)),
        ("python_marked", u64::from(python_entry::MARKED)),
        ("no_offset", u64::from(NO_OFFSET)),
        ("python_frame_bytes", PYTHON_FRAME_BYTES as u64),
        ("python_code_bytes", PYTHON_CODE_BYTES as u64),
        ("python_keys", u64::from(PYTHON_KEYS)),
        ("python_frame", PYTHON_FRAME),
        ("python_last", PYTHON_LAST),
        ("python_native", PYTHON_NATIVE),
        ("python_location", u64::from(PYTHON_LOCATION)),
        ("python_name_bytes", PYTHON_NAME_BYTES as u64),
        ("python_file_bytes", PYTHON_FILE_BYTES as u64),
        ("python_cache_offset", PYTHON_CACHE_OFFSET as u64),
        ("python_cache_entries", PYTHON_CACHE_ENTRIES as u64),
        ("python_chains_offset", PYTHON_CHAINS_OFFSET as u64),
        ("python_chains", PYTHON_CHAINS as u64),
        ("python_chain_bytes", PYTHON_CHAIN_BYTES as u64),
        ("ring_free", u64::from(ring_state::FREE)),
        ("ring_claimed", u64::from(ring_state::CLAIMED)),
        ("birth_offered", u64::from(birth::OFFERED)),
        ("birth_taken", u64::from(birth::TAKEN)),
        ("birth_claimed", u64::from(birth::CLAIMED)),
        ("birth_closed", u64::from(birth::CLOSED)),
        ("gate_birth_offset", GATE_BIRTH_OFFSET),
        ("look_open", u64::from(look::OPEN)),
        ("look_named", u64::from(look::NAMED)),
        ("look_asked", u64::from(look::ASKED)),
        ("look_closed", u64::from(look::CLOSED)),
        ("birth_undecided", u64::from(gate_birth::UNDECIDED)),
        ("birth_under_way", u64::from(gate_birth::UNDER_WAY)),
        ("birth_done", u64::from(gate_birth::DONE)),
        ("birth_declined", u64::from(gate_birth::DECLINED)),
        ("spares_behind_gate", SPARES_BEHIND_GATE),
        ("most_spares", MOST_SPARES as u64),
        ("first_fork", id_of("fork")),
        ("last_fork", id_of("_Fork")),
    ];
    for (name, value) in constants {
        let _ = writeln!(out, "inline constexpr uint64_t {name} = {value:#x};");
    }
    for (name, value) in [
        ("not_our_region", hook_error::NOT_OUR_REGION),
        ("no_wipe_on_fork", hook_error::NO_WIPE_ON_FORK),
        ("stale", hook_error::STALE),
        ("no_loader", hook_error::NO_LOADER),
    ] {
        let _ = writeln!(out, "inline constexpr long {name} = {value};");
    }
    out.push('\n');
    print_struct(&mut out, "Control", Control::FIELDS, size_of::<Control>());
    print_struct(&mut out, "Tally", Tally::FIELDS, size_of::<Tally>());
    print_struct(
        &mut out,
        "StackBounds",
        StackBounds::FIELDS,
        size_of::<StackBounds>(),
    );
    print_struct(
        &mut out,
        "AccessRecord",
        AccessRecord::FIELDS,
        size_of::<AccessRecord>(),
    );
    print_struct(
        &mut out,
        "SlotEntry",
        SlotEntry::FIELDS,
        size_of::<SlotEntry>(),
    );
    print_struct(
        &mut out,
        "ModuleEntry",
        ModuleEntry::FIELDS,
        size_of::<ModuleEntry>(),
    );
    print_struct(
        &mut out,
        "RingHeader",
        RingHeader::FIELDS,
        size_of::<RingHeader>(),
    );
    print_struct(
        &mut out,
        "StackEntry",
        StackEntry::FIELDS,
        size_of::<StackEntry>(),
    );
    print_struct(
        &mut out,
        "PythonLayout",
        PythonLayout::FIELDS,
        size_of::<PythonLayout>(),
    );
    print_struct(
        &mut out,
        "ProbeConfig",
        ProbeConfig::FIELDS,
        size_of::<ProbeConfig>(),
    );
    print_struct(
        &mut out,
        "ProbeThread",
        ProbeThread::FIELDS,
        size_of::<ProbeThread>(),
    );
    print_struct(
        &mut out,
        "MarkEntry",
        MarkEntry::FIELDS,
        size_of::<MarkEntry>(),
    );
    print_struct(
        &mut out,
        "HookDescription",
        HookDescription::FIELDS,
        size_of::<HookDescription>(),
    );
    print_struct(
        &mut out,
        "Exchange",
        Exchange::FIELDS,
        size_of::<Exchange>(),
    );
    out.push_str("}  // namespace memhook::abi\n\n#define MEMHOOK_HOOKED_FUNCTIONS(X)");
    for (id, function) in HOOKED_FUNCTIONS.iter().enumerate() {
        let _ = write!(
            out,
            " \\\n  X({id}, {}, {:?})",
            function.name, function.signature
        );
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    /// The header in the tree matches the layout; `MEMHOOK_WRITE_ABI=1` rewrites it.
    #[test]
    fn header_in_tree_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../hook-cxx/abi.hpp");
        let wanted = super::cxx_header();
        if std::env::var_os("MEMHOOK_WRITE_ABI").is_some() {
            std::fs::write(path, &wanted).unwrap();
        }
        let found = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            found == wanted,
            "hook-cxx/abi.hpp is stale: run MEMHOOK_WRITE_ABI=1 cargo test -p memhook-abi"
        );
    }
}
