//! Selection of functions: `name`, `module!name`, `module+0xoffset`, with the wildcards `*` and `?`.

use memhook_foreign::glob;

/// Selected functions of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A function with this name, mangled or demangled, with or without its parameters.
    Name(String),
    /// All functions that match.
    Pattern(String),
    /// Function at this address in the module's file (svma).
    Offset(u64),
}

/// Selects functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionSelector {
    /// Text of the selector.
    pub text: String,
    /// File name of the module, or a pattern.
    pub module: Option<String>,
    /// Selected functions of the module.
    pub wanted: Wanted,
}

impl FunctionSelector {
    /// Parses a comma-separated list; commas between brackets are part of a name.
    pub fn list(text: &str) -> Result<Vec<FunctionSelector>, String> {
        let mut depth = 0i32;
        let mut parts = vec![String::new()];
        for sign in text.chars() {
            match sign {
                '(' | '<' | '[' => depth += 1,
                ')' | '>' | ']' => depth -= 1,
                ',' if depth <= 0 => {
                    parts.push(String::new());
                    continue;
                }
                _ => {}
            }
            parts.last_mut().expect("there is one").push(sign);
        }
        parts
            .iter()
            .map(|part| FunctionSelector::one(part.trim()))
            .collect()
    }

    fn one(text: &str) -> Result<FunctionSelector, String> {
        let (module, name) = match text.split_once('!') {
            // `operator!` and `operator!=` are names.
            Some((module, name)) if !module.ends_with("operator") => (Some(module), name),
            _ => (None, text),
        };
        if name.is_empty() || module == Some("") {
            return Err(format!(
                "'{text}' names no function: expected name, module!name or module+0xoffset"
            ));
        }
        if let Some((module, offset)) = text.rsplit_once("+0x")
            && let Ok(offset) = u64::from_str_radix(offset, 16)
            && !module.is_empty()
        {
            return Ok(FunctionSelector {
                text: text.to_owned(),
                module: Some(module.to_owned()),
                wanted: Wanted::Offset(offset),
            });
        }
        let is_pattern = name.contains(['*', '?']) && !name.contains("operator*");
        Ok(FunctionSelector {
            text: text.to_owned(),
            module: module.map(str::to_owned),
            wanted: if is_pattern {
                Wanted::Pattern(name.to_owned())
            } else {
                Wanted::Name(name.to_owned())
            },
        })
    }

    /// Returns true if a module with this file name is selected: `libc.so.6` is also selected by `libc` and `libc.so`,
    /// and `libstdc++.so.6.0.30` by `libstdc++.so.6`.
    pub fn is_in(&self, module: &str) -> bool {
        self.module.as_deref().is_none_or(|wanted| {
            let short = module.split(".so").next().unwrap_or(module);
            let versionless = module.split_inclusive(".so").next().unwrap_or(module);
            let is_version = |rest: &str| rest.starts_with('.');
            wanted.contains(".so") && module.strip_prefix(wanted).is_some_and(is_version)
                || [module, short, versionless]
                    .iter()
                    .any(|name| glob(wanted, name))
        })
    }

    /// Returns true if the function with this symbol is selected. `demangle` is only called if necessary.
    pub fn is_name(&self, symbol: &str, demangle: &dyn Fn(&str) -> String) -> bool {
        let matches: &dyn Fn(&str) -> bool = match &self.wanted {
            Wanted::Offset(_) => return false,
            Wanted::Name(name) => &move |text| text == name,
            Wanted::Pattern(pattern) => &move |text| glob(pattern, text),
        };
        if matches(symbol) {
            return true;
        }
        let symbol = original_of(symbol);
        if matches(symbol) {
            return true;
        }
        let is_mangled = symbol.starts_with("_Z") || symbol.starts_with("_R");
        is_mangled && {
            let full = demangle(symbol);
            matches(&full) || matches(without_parameters(&full))
        }
    }

    /// Returns true if a function is selected by its name without scopes: `f` also selects `ns::f`. Reports use such
    /// names, because they omit `(anonymous namespace)::`. Use this if no function has the whole name.
    pub fn is_unscoped_name(&self, symbol: &str, demangle: &dyn Fn(&str) -> String) -> bool {
        let Wanted::Name(wanted) = &self.wanted else {
            return false;
        };
        let symbol = original_of(symbol);
        let is_mangled = symbol.starts_with("_Z") || symbol.starts_with("_R");
        is_mangled && {
            let full = demangle(symbol).replace("(anonymous namespace)::", "");
            let ends = |name: &str| {
                let scopes = name.strip_suffix(wanted.as_str());
                scopes.is_some_and(|scopes| scopes.is_empty() || scopes.ends_with("::"))
            };
            ends(&full) || ends(without_parameters(&full))
        }
    }
}

/// Given a copy made by the compiler, returns the symbol of the original: gcc specializes functions for some arguments
/// (`-fipa-sra`, `-fipa-cp`), and clang renames functions to make their names unique (`-flto=thin`).
pub fn original_of(symbol: &str) -> &str {
    let mut original = symbol;
    while let Some((rest, number)) = original.rsplit_once('.')
        && let Some((name, kind)) = rest.rsplit_once('.')
        && matches!(kind, "isra" | "constprop" | "llvm")
        && number.bytes().all(|b| b.is_ascii_digit())
    {
        original = name;
    }
    original
}

/// Returns `ns::f` for `ns::f(int) const`, and `operator()` for `operator()(int)`.
fn without_parameters(name: &str) -> &str {
    let end = name.trim_end_matches(" const");
    if !end.ends_with(')') {
        return name;
    }
    let mut depth = 0;
    for (at, sign) in end.char_indices().rev() {
        match sign {
            ')' => depth += 1,
            '(' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &name[..at];
        }
    }
    name
}

/// Returns the names most similar to `wanted`, the best first. At most a third of the letters of `wanted` may differ.
pub fn nearest<'n>(
    wanted: &str,
    names: impl Iterator<Item = &'n str>,
    most: usize,
) -> Vec<&'n str> {
    let limit = (wanted.chars().count() / 3).clamp(2, 6);
    let is_close = |name: &&str| name.len().abs_diff(wanted.len()) <= limit;
    let mut found: Vec<(usize, &str)> = names
        .filter(is_close)
        .map(|name| (edits(wanted, name), name))
        .filter(|(edits, _)| *edits <= limit)
        .collect();
    found.sort_unstable();
    found.dedup();
    found.into_iter().take(most).map(|(_, name)| name).collect()
}

/// Returns the number of letters to change, remove or insert, or of neighbours to swap, to turn one word into the other
/// (optimal string alignment).
fn edits(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows = vec![(0..=other.len()).collect::<Vec<usize>>()];
    for i in 0..one.len() {
        let mut row = vec![i + 1];
        for j in 0..other.len() {
            let above = &rows[i];
            let changed = above[j] + usize::from(one[i] != other[j]);
            let mut least = changed.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && one[i] == other[j - 1] && one[i - 1] == other[j] {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(text: &str) -> FunctionSelector {
        FunctionSelector::list(text).expect("valid").remove(0)
    }

    #[test]
    fn lists_keep_brackets_together() {
        let texts = |list: &str| -> Vec<String> {
            let list = FunctionSelector::list(list).expect("valid");
            list.into_iter().map(|selector| selector.text).collect()
        };
        assert_eq!(texts("a,b"), ["a", "b"]);
        assert_eq!(
            texts("f(int, int), std::map<a,b>::find"),
            ["f(int, int)", "std::map<a,b>::find"]
        );
        assert!(FunctionSelector::list("a,,b").is_err());
        assert!(FunctionSelector::list("libc!").is_err());
    }

    #[test]
    fn modules_and_offsets() {
        let libc = one("libc!malloc");
        assert!(libc.is_in("libc.so.6") && !libc.is_in("libcrypto.so.3"));
        assert!(one("lib*!x").is_in("libcrypto.so.3"));
        assert!(one("libc.so!x").is_in("libc.so.6"));
        assert!(one("libstdc++.so.6!x").is_in("libstdc++.so.6.0.30"));
        assert!(!one("libfoo.so.1!x").is_in("libfoo.so.10"));
        assert_eq!(one("server+0x1230").wanted, Wanted::Offset(0x1230));
        assert_eq!(
            one("a::operator!=").wanted,
            Wanted::Name("a::operator!=".into())
        );
    }

    #[test]
    fn names_mangled_or_not() {
        let demangle = |_: &str| "pool::take(unsigned long) const".to_owned();
        for name in [
            "_ZNK4pool4takeEm",
            "pool::take",
            "pool::take(unsigned long) const",
            "pool::*",
        ] {
            assert!(one(name).is_name("_ZNK4pool4takeEm", &demangle), "{name}");
        }
        assert!(!one("take").is_name("_ZNK4pool4takeEm", &demangle));
        assert_eq!(without_parameters("a::operator()(int)"), "a::operator()");
    }

    #[test]
    fn scopes_may_be_left_out() {
        let demangle = |_: &str| "shop::(anonymous namespace)::take(int)".to_owned();
        for name in ["take", "take(int)", "shop::take", "shop::take(int)"] {
            let selector = one(name);
            assert!(selector.is_unscoped_name("_ZTake", &demangle), "{name}");
            assert!(!selector.is_name("_ZTake", &demangle), "{name}");
        }
        for name in ["ake", "hop::take", "take(long)", "op::take", "*take"] {
            let selector = one(name);
            assert!(!selector.is_unscoped_name("_ZTake", &demangle), "{name}");
        }
        assert!(!one("take").is_unscoped_name("mistake", &demangle));
    }

    #[test]
    fn copies_of_a_function_are_meant_too() {
        let demangle = |symbol: &str| match symbol {
            "_Z3reci" => "rec(int)".to_owned(),
            other => other.to_owned(),
        };
        assert!(one("rec").is_name("_Z3reci.isra.0", &demangle));
        assert!(one("take").is_name("take.constprop.0.isra.1", &demangle));
        assert!(!one("take").is_name("take.1", &demangle));
        assert!(one("take.part.0").is_name("take.part.0", &demangle));
        assert!(!one("take").is_name("take.part.0", &demangle));
        assert!(!one("take").is_name("take.cold", &demangle));
    }

    #[test]
    fn the_nearest_name_comes_first() {
        let names = ["pool_alloc", "pool_free", "poll", "pool_allot"];
        assert_eq!(
            nearest("pool_aloc", names.into_iter(), 2),
            ["pool_alloc", "pool_allot"]
        );
        assert_eq!(
            nearest("bra", ["brk", "bar", "foo"].into_iter(), 1),
            ["bar"]
        );
        assert!(nearest("zzz", names.into_iter(), 2).is_empty());
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,60}") {
            if let Ok(list) = FunctionSelector::list(&text) {
                for selector in list {
                    selector.is_in(&text);
                    selector.is_name(&text, &|name| name.to_owned());
                }
            }
        }
    }
}
