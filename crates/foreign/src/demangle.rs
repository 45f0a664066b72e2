//! Demangling of C++ and Rust names, within bounds.
//!
//! A mangled name can refer to earlier parts of itself, so every ten bytes may double the length of the demangled name.
//! Therefore the output of a demangler must be limited, not its input.

use crate::bounded_name::{Bounded, MOST_NAME_BYTES};
use crate::itanium::{self, Style};
use std::fmt;

/// Returns the name as written in its source, without return types, types of literals and hashes. Returns any other
/// name unchanged.
pub fn demangle(name: &str) -> String {
    // Symbol tables of shared objects may contain versions: `f@@VERSION`.
    let plain = name.split_once('@').map_or(name, |(plain, _)| plain);
    demangled(plain, Style { in_full: false })
}

/// Returns the name with return types, like valgrind and c++filt.
pub fn demangle_in_full(name: &str) -> String {
    demangled(name, Style { in_full: true })
}

/// Returns the name of a type, from the mangled form used in RTTI and in vtable symbols.
pub fn class_name(mangled: &str) -> String {
    // A bare mangled type is not a symbol, but its typeinfo-name symbol is.
    let symbol = format!("_ZTS{mangled}");
    let text = cpp(&symbol, Style { in_full: true });
    let text = text.as_deref();
    cut(text
        .and_then(|text| text.strip_prefix("typeinfo name for "))
        .unwrap_or(mangled))
}

fn demangled(name: &str, style: Style) -> String {
    // Rust comes first: its legacy scheme uses the Itanium prefix, so the C++ demangler would accept the name and leave
    // the hash in it.
    let readable = rust(name).or_else(|| cpp(name, style));
    readable.unwrap_or_else(|| cut(name))
}

fn rust(name: &str) -> Option<String> {
    if name.len() > MOST_NAME_BYTES || name.starts_with("_ZN") && !has_rust_hash(name) {
        return None;
    }
    let name = rustc_demangle::try_demangle(name).ok()?;
    let mut out = Bounded::default();
    fmt::write(&mut out, format_args!("{name:#}")).ok()?;
    out.finished()
}

/// Returns true if the last namespace looks like a hash, which marks Rust's legacy scheme. Apart from the hash, that
/// scheme is the same as the one of C++.
fn has_rust_hash(name: &str) -> bool {
    let hash = name.rfind("17h").and_then(|at| name.get(at + 3..at + 20));
    hash.and_then(|hash| hash.strip_suffix('E'))
        .is_some_and(|hash| hash.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn cpp(name: &str, style: Style) -> Option<String> {
    if !name.starts_with("_Z") || name.len() > MOST_NAME_BYTES {
        return None;
    }
    itanium::demangle(name, style, Bounded::default())
}

/// Returns the visible part of a name.
fn cut(name: &str) -> String {
    /// Number of bytes of a mangled name that are shown. More would not help the reader.
    const SHOWN_BYTES: usize = 1024;
    if name.len() <= MOST_NAME_BYTES && !name.starts_with("_Z") || name.len() <= SHOWN_BYTES {
        return name.to_owned();
    }
    let end = (0..=SHOWN_BYTES)
        .rev()
        .find(|&end| name.is_char_boundary(end));
    format!("{}...", &name[..end.unwrap_or(0)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounded_name::MOST_VISITS;
    use proptest::prelude::*;
    use std::fmt::Write;
    use std::time::{Duration, Instant};

    #[test]
    fn schemes() {
        for (mangled, readable) in [
            ("main", "main"),
            ("malloc@@GLIBC_2.2.5", "malloc"),
            ("_ZN3foo3barEi", "foo::bar(int)"),
            ("_Z3maxIiET_S0_S0_", "max<int>(int, int)"),
            ("_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write"),
            (
                "_RNvCskwGfYPst2Cb_3foo16example_function",
                "foo::example_function",
            ),
            (
                "_ZSt11make_sharedI5ImageJEESt10shared_ptrINSt9enable_ifIXntsrSt8is_arrayIT_E5valueES2_E4typeEEDpOT0_",
                "std::make_shared<Image>()",
            ),
            (
                "_ZN3BoxILm2EJEE3putIJiEEEvDpRKT_",
                "Box<2>::put<int>(int const&)",
            ),
            ("_ZN12_GLOBAL__N_15tableE", "(anonymous namespace)::table"),
            ("_ZTV6Widget", "vtable for Widget"),
            ("_ZN1AcvT_IiEEv", "A::operator int<int>()"),
            (
                "_ZZ4mainENKUlT_E_clIiEEDaS_.cold",
                "main::{lambda(auto:1)#1}::operator()<int>(auto:1) const [clone .cold]",
            ),
            (
                "_Z1fPFivEM1AFvvERA3_c",
                "f(int (*)(), void (A::*)(), char (&) [3])",
            ),
            ("_Z", "_Z"),
            ("_ZN3foo", "_ZN3foo"),
            ("", ""),
        ] {
            assert_eq!(demangle(mangled), readable);
        }
        assert_eq!(
            demangle_in_full("_Z3maxIiET_S0_S0_"),
            "int max<int>(int, int)"
        );
        assert_eq!(
            demangle_in_full("_Z4makeIXadL_Z1fiEELj3EE3BoxIXT0_EEv"),
            "Box<3u> make<&(f(int)), 3u>()"
        );
        assert_eq!(class_name("6Widget"), "Widget");
        assert_eq!(class_name("N2ns4BaseIiEE"), "ns::Base<int>");
        assert_eq!(class_name("not mangled"), "not mangled");
    }

    /// Returns a type whose last argument is a pair of the previous argument, nested `times` times.
    fn doubling(times: usize) -> String {
        // `1PI i i E` is substitution S_ for `1P`, S0_ for P<int, int>. Each further P<X, X> is the next substitution.
        let mut inner = "1PIiiE".to_owned();
        for n in 0..times {
            let seq = match n {
                0 => "S0_".to_owned(),
                n => format!("S{}_", base36(n)),
            };
            write!(inner, "S_I{seq}{seq}E").unwrap();
        }
        inner
    }

    fn base36(n: usize) -> String {
        let digits = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
        let (high, low) = (n / 36, digits[n % 36] as char);
        match high {
            0 => low.to_string(),
            high => format!("{}{low}", base36(high)),
        }
    }

    /// Each step doubles the name; the whole symbol has a few hundred bytes.
    #[test]
    fn a_name_that_doubles_itself_is_shown_as_it_is() {
        let symbol = format!("_Z1f{}", doubling(24));
        assert!(symbol.len() < 300, "{}", symbol.len());
        assert_eq!(demangle(&symbol), symbol);
        assert_eq!(demangle_in_full(&symbol), symbol);
        // Short names are demangled as usual.
        let short = demangle(&format!("_Z1f{}", doubling(4)));
        assert!(
            short.starts_with("f(P<int, int>, P<P<int, int>, P<int, int>"),
            "{short}"
        );
        let class = format!("1QIJ{}EE", doubling(24));
        assert_eq!(class_name(&class), class);
    }

    /// Neither the parser nor the printer overflows the stack.
    #[test]
    fn a_deep_name_is_shown_as_it_is() {
        for part in [
            "P", "N1A", "1fI", "1fIX", "1fIJ", "LZ", "Z1f", "PF", "UlP", "cv", "Dp", "A_", "M1A",
        ] {
            for begin in ["_Z1f", "_ZN1A", "_ZTI", "_Z1fIX", "_Z"] {
                let name = format!("{begin}{}", part.repeat(8000 / part.len()));
                assert_eq!(demangle(&name), cut(&name));
            }
        }
        // Each type is a pointer to the previous one, and is parsed without recursion.
        let types: Vec<String> = (0..2000).map(|n| format!("PS{}_", base36(n))).collect();
        let name = format!("_Z1fPi{}", types.concat());
        let shown = demangle(&name);
        assert!(
            shown.starts_with("f(int*, ") || shown == cut(&name),
            "{shown}"
        );
    }

    #[test]
    fn parts_that_write_nothing_count_too() {
        let mut out = Bounded::default();
        for _ in 0..=MOST_VISITS {
            out.visit();
        }
        assert!(out.write_str("x").is_err());
        assert_eq!(out.finished(), None);
    }

    #[test]
    fn a_long_name_is_cut() {
        let long = format!("_Z{}", "x".repeat(100_000));
        let shown = demangle(&long);
        assert!(shown.len() < 2000 && long.starts_with(shown.trim_end_matches('.')));
        assert!(demangle(&"\u{e9}".repeat(100_000)).len() < 2000);
    }

    /// Each tuple contains the previous tuple twice (Rust RFC 2603: back references are by position).
    #[test]
    fn a_rust_name_that_doubles_itself_is_shown_as_it_is() {
        let of = |times| {
            let mut symbol = "_RIC1a".to_owned();
            let mut tuple = "TuuE".to_owned();
            for _ in 0..times {
                let at = base62(symbol.len() - "_R".len());
                symbol += &tuple;
                tuple = format!("TB{at}B{at}E");
            }
            symbol + "E"
        };
        assert_eq!(demangle(&of(2)), "a::<((), ()), (((), ()), ((), ()))>");
        let long = of(24);
        assert!(long.len() < 300);
        assert_eq!(demangle(&long), long);
    }

    fn base62(n: usize) -> String {
        let digits = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
        let mut digits_of = Vec::new();
        let mut rest = n.checked_sub(1);
        while let Some(n) = rest {
            digits_of.push(digits[n % 62] as char);
            rest = (n >= 62).then_some(n / 62);
        }
        digits_of.iter().rev().collect::<String>() + "_"
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]
        /// Checks that for any name, the result is bounded and arrives in time. The time limit is far longer than the
        /// slowest machine needs, and far shorter than an unbounded name would take.
        #[test]
        fn any_name_has_an_end(
            prefix in "(_Z|_R|_ZN|_ZTS|_Z1f)",
            parts in prop::collection::vec(
                "(S_|S[0-9A-Z]_|T_|T[0-9]_|I|E|J|Dp|DpT_|1P|1f|N|K|P|R|i|L|Li0E|X|B[0-9a-f]_|F|vE|C1|sr|St|Sa|Dt|cv|M|A_|D[a-z])", 0..120),
        ) {
            let name = format!("{prefix}{}", parts.concat());
            let begin = Instant::now();
            for name in [demangle(&name), demangle_in_full(&name), class_name(&name)] {
                prop_assert!(name.len() <= MOST_NAME_BYTES + 3);
            }
            prop_assert!(begin.elapsed() < Duration::from_secs(20), "{name}");
        }
    }
}
