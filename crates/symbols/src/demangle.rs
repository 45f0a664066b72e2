//! C++ and Rust names.

use cpp_demangle::{DemangleOptions, Symbol};

/// The name as its source has it, without return types and hashes; any other name as it is.
pub fn demangle(name: &str) -> String {
    // Symbol tables of shared objects may carry versions: `f@@VERSION`.
    let plain = name.split_once('@').map_or(name, |(plain, _)| plain);
    // Rust first: its old scheme uses the Itanium prefix, and would demangle with a hash.
    if let Ok(rust) = rustc_demangle::try_demangle(plain) {
        return format!("{rust:#}");
    }
    if !plain.starts_with("_Z") {
        return plain.to_owned();
    }
    let options = DemangleOptions::new()
        .no_return_type()
        .hide_expression_literal_types();
    Symbol::new(plain)
        .ok()
        .and_then(|symbol| symbol.demangle_with_options(&options).ok())
        .unwrap_or_else(|| plain.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("_Z", "_Z"),
            ("_ZN3foo", "_ZN3foo"),
            ("", ""),
        ] {
            assert_eq!(demangle(mangled), readable);
        }
    }
}
