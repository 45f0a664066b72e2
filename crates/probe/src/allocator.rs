//! Allocators described by the user: one function at a time on the command line, or several allocators in a file.
//!
//! A description has the name of the function, the meaning of its arguments, and the location in which the block is
//! returned: `pool_alloc(size=arg2) -> ptr`, `pool_free(ptr=arg1)`, `get(count=arg1, size=arg2, ptr=*arg3) -> 0`.

use crate::{FunctionSelector, Wanted};
use memhook_abi::{
    Argument, BlockSize, DescribedFunction, DescribedRole, MAX_DESCRIBED, MAX_HEAPS, Success,
};
use memhook_foreign::units;
use serde::Deserialize;
use std::ops::Range;
use toml::Spanned;

/// Number of arguments that are passed in registers.
const MOST_ARGUMENTS: u8 = 6;
/// Longest name of a heap.
const MOST_LETTERS: usize = 64;
/// Heap of the C library's allocator and similar ones.
pub const MAIN_HEAP: &str = "malloc";

/// One function of an allocator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatorFunction {
    /// Selects the function.
    pub selector: FunctionSelector,
    /// Effect of the function. Its heap is the heap of its allocator.
    pub does: DescribedFunction,
}

/// An allocator: a heap with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocator {
    /// Name of the heap in reports.
    pub name: String,
    /// Functions of the allocator.
    pub functions: Vec<AllocatorFunction>,
}

/// Returns the syntax for a function of an allocator.
fn form(role: DescribedRole) -> &'static str {
    match role {
        DescribedRole::Allocates => {
            "expected one like 'pool_alloc(size=arg2) -> ptr' or 'pool_get(size=fixed:64, ptr=*arg1) -> 0'"
        }
        DescribedRole::Releases => "expected one like 'pool_free(ptr=arg1)'",
        DescribedRole::Reallocates => {
            "expected one like 'pool_realloc(ptr=arg2, size=arg3) -> ptr'"
        }
    }
}

/// Parts between the parentheses.
#[derive(Default)]
struct Parts {
    size: Option<Size>,
    count: Option<Argument>,
    /// Number of the argument, and true if it points to the pointer.
    ptr: Option<(u8, bool)>,
}

enum Size {
    Argument(Argument),
    Fixed(u32),
}

impl AllocatorFunction {
    /// Reads a description.
    pub fn parse(role: DescribedRole, text: &str) -> Result<AllocatorFunction, String> {
        let mistake = |why: &str| format!("'{text}': {why}; {}", form(role));
        let (call, result) = match text.rfind("->").filter(|at| !text[*at..].contains(')')) {
            Some(at) => (text[..at].trim(), Some(text[at + 2..].trim())),
            None => (text.trim(), None),
        };
        let inside = call
            .strip_suffix(')')
            .and_then(|rest| Some((rest, rest.rfind('(')?)));
        let Some((rest, open)) = inside else {
            return Err(mistake("its arguments in parentheses are missing"));
        };
        let selector = match <[_; 1]>::try_from(FunctionSelector::list(rest[..open].trim())?) {
            Ok([selector]) if !matches!(selector.wanted, Wanted::Pattern(_)) => selector,
            _ => return Err(mistake("it names more than one function")),
        };
        let parts = Parts::read(&rest[open + 1..]).map_err(|why| mistake(&why))?;
        let does = parts.resolve(role, result).map_err(|why| mistake(&why))?;
        Ok(AllocatorFunction { selector, does })
    }
}

impl Parts {
    fn read(text: &str) -> Result<Parts, String> {
        let mut parts = Parts::default();
        for part in text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            let Some((key, value)) = part.split_once('=') else {
                return Err(format!("'{part}' is not name=value"));
            };
            let (key, value) = (key.trim(), value.trim());
            let is_new = match key {
                "size" => parts.size.replace(size(value)?).is_none(),
                "count" => parts.count.replace(argument(value)?).is_none(),
                "ptr" => parts.ptr.replace(pointer(value)?).is_none(),
                _ => return Err(format!("'{key}' is not size, count or ptr")),
            };
            if !is_new {
                return Err(format!("'{key}' is given twice"));
            }
        }
        Ok(parts)
    }

    fn resolve(
        self,
        role: DescribedRole,
        result: Option<&str>,
    ) -> Result<DescribedFunction, String> {
        let is_returned = result == Some("ptr");
        let success = match result {
            None | Some("ptr") => Success::Block,
            Some("0") => Success::Zero,
            Some("nonzero") => Success::NotZero,
            Some(other) => {
                return Err(format!(
                    "'-> {other}' is not '-> ptr', '-> 0' or '-> nonzero'"
                ));
            }
        };
        if role == DescribedRole::Releases {
            if self.size.is_some() || self.count.is_some() || result.is_some() {
                return Err("a release takes ptr and nothing else".to_owned());
            }
            let (old, old_is_indirect) = self.ptr.ok_or("it lacks ptr=")?;
            return Ok(DescribedFunction {
                role,
                heap: 0,
                size: BlockSize::Fixed(0),
                old,
                old_is_indirect,
                result: 0,
                success,
            });
        }
        let size = match (self.size, self.count) {
            (Some(Size::Argument(size)), None) => BlockSize::Argument(size),
            (Some(Size::Argument(size)), Some(count)) => BlockSize::Product(count, size),
            (Some(Size::Fixed(bytes)), None) => BlockSize::Fixed(bytes),
            (Some(Size::Fixed(_)), Some(_)) => {
                return Err(
                    "a fixed size is the size of the whole block: leave count= out".to_owned(),
                );
            }
            (None, _) => return Err("it lacks size=".to_owned()),
        };
        let (old, result) = match (role, self.ptr, is_returned) {
            (DescribedRole::Allocates, None, true) => ((0, false), 0),
            (DescribedRole::Allocates, None, false) => {
                return Err("it does not say how the block is returned".to_owned());
            }
            (DescribedRole::Allocates, Some((place, true)), false) => ((0, false), place),
            (DescribedRole::Allocates, Some((_, false)), _) => {
                return Err("a new block is returned through a pointer: ptr=*argN".to_owned());
            }
            (DescribedRole::Allocates, Some((_, true)), true) => {
                return Err("the block is returned in two ways: leave one out".to_owned());
            }
            (_, Some(old), true) => (old, 0),
            (_, Some((place, true)), false) => ((place, true), place),
            (_, Some((_, false)), false) => {
                return Err("it does not say how the new block is returned".to_owned());
            }
            (_, None, _) => return Err("it lacks ptr=".to_owned()),
        };
        Ok(DescribedFunction {
            role,
            heap: 0,
            size,
            old: old.0,
            old_is_indirect: old.1,
            result,
            success,
        })
    }
}

fn size(text: &str) -> Result<Size, String> {
    let Some(bytes) = text.strip_prefix("fixed:") else {
        return argument(text).map(Size::Argument);
    };
    let bytes = units::size(bytes.trim()).ok();
    match bytes.and_then(|bytes| bytes.try_into().ok()) {
        Some(bytes) => Ok(Size::Fixed(bytes)),
        None => Err(format!(
            "'{text}' is not a size of at most 4294967295 bytes"
        )),
    }
}

/// Reads `arg2`, or `arg2:32` for an `int` or `unsigned`.
fn argument(text: &str) -> Result<Argument, String> {
    let (name, bits) = text.split_once(':').unwrap_or((text, "64"));
    let is_narrow = match bits {
        "32" => true,
        "64" => false,
        _ => return Err(format!("'{text}': an argument has 32 or 64 bits")),
    };
    Ok(Argument {
        number: argument_number(name)?,
        is_narrow,
    })
}

fn pointer(text: &str) -> Result<(u8, bool), String> {
    match text.strip_prefix('*') {
        Some(name) => Ok((argument_number(name)?, true)),
        None => Ok((argument_number(text)?, false)),
    }
}

fn argument_number(name: &str) -> Result<u8, String> {
    let number = name.strip_prefix("arg").and_then(|n| n.parse::<u64>().ok());
    match number {
        Some(number) if (1..=u64::from(MOST_ARGUMENTS)).contains(&number) => Ok(number as u8),
        Some(_) => Err(format!(
            "'{name}' is not in a register: only arg1 to arg6 can be read"
        )),
        None => Err(format!("'{name}' is not an argument (arg1 to arg6)")),
    }
}

/// Allocators of a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    allocator: Vec<Spanned<Described>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    name: Spanned<String>,
    #[serde(default)]
    alloc: Vec<Spanned<String>>,
    #[serde(default)]
    free: Vec<Spanned<String>>,
    #[serde(default)]
    realloc: Vec<Spanned<String>>,
}

impl Allocator {
    /// Parses a description on one line: `pool: alloc pool_alloc(size=arg2) -> ptr; free pool_free(ptr=arg1)`. Without
    /// a name, the allocator is named after its first function.
    pub fn parse(text: &str) -> Result<Allocator, String> {
        let (name, text) = match text.split_once(": ") {
            Some((name, rest)) if !name.contains('(') => (Some(name.trim()), rest),
            _ => (None, text),
        };
        let functions = text.split(';').map(str::trim).filter(|one| !one.is_empty());
        let functions = functions.map(|one| {
            let (word, function) = one.split_once(' ').unwrap_or((one, ""));
            let role = match word {
                "alloc" => DescribedRole::Allocates,
                "free" => DescribedRole::Releases,
                "realloc" => DescribedRole::Reallocates,
                _ => {
                    return Err(format!(
                        "'{}': expected alloc, free or realloc before a function, as in 'free pool_free(ptr=arg1)'",
                        word.escape_debug()
                    ));
                }
            };
            AllocatorFunction::parse(role, function.trim())
        });
        let functions: Vec<AllocatorFunction> = functions.collect::<Result<_, _>>()?;
        let first = functions.first().ok_or("no function of it is described")?;
        let name = name.map_or_else(|| first.selector.text.replace('!', " "), str::to_owned);
        let all = [Allocator { name, functions }];
        check_allocators(&all)?;
        let [one] = all;
        Ok(one)
    }

    /// Reads a file of allocators. A mistake is reported with its line and column.
    pub fn file(text: &str) -> Result<Vec<Allocator>, String> {
        let file: File = toml::from_str(text).map_err(|error| {
            let at = error.span().unwrap_or(0..0);
            format!("{}: {}", place(text, at), first_line(error.message()))
        })?;
        let mut all: Vec<Allocator> = Vec::new();
        for spanned in &file.allocator {
            let described = spanned.get_ref();
            let wrong = |span: Range<usize>, why: String| format!("{}: {why}", place(text, span));
            let mut functions = Vec::new();
            for (role, texts) in [
                (DescribedRole::Allocates, &described.alloc),
                (DescribedRole::Releases, &described.free),
                (DescribedRole::Reallocates, &described.realloc),
            ] {
                for one in texts {
                    let function = AllocatorFunction::parse(role, one.get_ref());
                    functions.push(function.map_err(|why| wrong(one.span(), why))?);
                }
            }
            all.push(Allocator {
                name: described.name.get_ref().clone(),
                functions,
            });
            // All earlier allocators were checked, so the mistake is in the last one.
            check_allocators(&all).map_err(|why| wrong(described.name.span(), why))?;
        }
        if all.is_empty() {
            return Err("1:1: it has no [[allocator]]".to_owned());
        }
        Ok(all)
    }
}

/// Checks that the number of allocators and functions is allowed, and that they are distinguishable.
pub fn check_allocators(all: &[Allocator]) -> Result<(), String> {
    for (number, allocator) in all.iter().enumerate() {
        let name = &allocator.name;
        let is_plain = |c: char| c.is_alphanumeric() || "_-+.:~<> ".contains(c);
        if name.is_empty() || name.len() > MOST_LETTERS || !name.chars().all(is_plain) {
            return Err(format!(
                "'{}' is not a name for a heap: use up to {MOST_LETTERS} letters, digits and _-+.:~<>",
                name.escape_debug()
            ));
        }
        if name == MAIN_HEAP || all[..number].iter().any(|other| other.name == *name) {
            return Err(format!("two heaps are called '{name}'"));
        }
        let is_source = |f: &AllocatorFunction| f.does.role != DescribedRole::Releases;
        if !allocator.functions.iter().any(is_source) {
            return Err(format!("no function of '{name}' allocates"));
        }
    }
    if all.len() > MAX_HEAPS {
        return Err(format!(
            "{} allocators: at most {MAX_HEAPS} are possible",
            all.len()
        ));
    }
    let functions: usize = all.iter().map(|a| a.functions.len()).sum();
    if functions > MAX_DESCRIBED {
        return Err(format!(
            "{functions} functions of allocators: at most {MAX_DESCRIBED} are possible"
        ));
    }
    Ok(())
}

/// Returns the line and column of a position, from 1.
fn place(text: &str, span: Range<usize>) -> String {
    let before = text.get(..span.start).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    format!("{line}:{column}")
}

fn first_line(message: &str) -> &str {
    message.lines().next().unwrap_or(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use DescribedRole::{Allocates, Reallocates, Releases};

    fn wide(number: u8) -> Argument {
        Argument {
            number,
            is_narrow: false,
        }
    }

    #[test]
    fn every_form_is_read() {
        let read = |role, text| {
            let found = AllocatorFunction::parse(role, text).expect(text);
            (found.selector.text, found.does)
        };
        let (name, does) = read(Allocates, "pool_alloc(size=arg2) -> ptr");
        assert_eq!(name, "pool_alloc");
        assert_eq!(does.size, BlockSize::Argument(wide(2)));
        assert_eq!((does.result, does.success), (0, Success::Block));
        let (name, does) = read(
            Allocates,
            "ns::Pool::calloc(unsigned long, int) const(count=arg2, size=arg3:32)->ptr",
        );
        assert_eq!(name, "ns::Pool::calloc(unsigned long, int) const");
        let narrow = Argument {
            number: 3,
            is_narrow: true,
        };
        assert_eq!(does.size, BlockSize::Product(wide(2), narrow));
        let (name, does) = read(Allocates, "libpool.so!get(size=fixed:64, ptr=*arg1) -> 0");
        assert_eq!(name, "libpool.so!get");
        assert_eq!(does.size, BlockSize::Fixed(64));
        assert_eq!((does.result, does.success), (1, Success::Zero));
        let (name, does) = read(Releases, "server+0x1240(ptr=*arg2)");
        assert_eq!(name, "server+0x1240");
        assert_eq!((does.old, does.old_is_indirect), (2, true));
        let (_, does) = read(Reallocates, "re(ptr=arg1, size=arg2) -> ptr");
        assert_eq!((does.old, does.old_is_indirect, does.result), (1, false, 0));
        let (_, does) = read(Reallocates, "re(ptr=*arg1, size=arg2) -> nonzero");
        assert_eq!((does.old, does.old_is_indirect, does.result), (1, true, 1));
        assert_eq!(does.success, Success::NotZero);
    }

    #[test]
    fn mistakes_are_named() {
        for (role, text, why) in [
            (
                Allocates,
                "pool_alloc",
                "arguments in parentheses are missing",
            ),
            (
                Allocates,
                "f(size=arg7) -> ptr",
                "'arg7' is not in a register",
            ),
            (Allocates, "f(size=edi) -> ptr", "'edi' is not an argument"),
            (
                Allocates,
                "f(size=arg1)",
                "it does not say how the block is returned",
            ),
            (Allocates, "f() -> ptr", "it lacks size="),
            (Allocates, "f(size=arg1:16) -> ptr", "32 or 64 bits"),
            (
                Allocates,
                "f(size=arg1, size=arg2) -> ptr",
                "'size' is given twice",
            ),
            (
                Allocates,
                "f(bytes=arg1) -> ptr",
                "'bytes' is not size, count or ptr",
            ),
            (Allocates, "f(size=arg1) -> rax", "'-> rax' is not '-> ptr'"),
            (Allocates, "f(size=arg1, ptr=arg2)", "ptr=*argN"),
            (Allocates, "f(size=arg1, ptr=*arg2) -> ptr", "in two ways"),
            (Allocates, "f*(size=arg1) -> ptr", "more than one function"),
            (Allocates, "f(size=fixed:-1) -> ptr", "is not a size"),
            (Releases, "f(size=arg1)", "takes ptr and nothing else"),
            (Releases, "f()", "it lacks ptr="),
            (Reallocates, "f(size=arg1) -> ptr", "it lacks ptr="),
        ] {
            let found = AllocatorFunction::parse(role, text).expect_err(text);
            assert!(
                found.contains(why) && found.contains("expected one like"),
                "{found}"
            );
            assert!(!found.contains('\n'), "{found}");
        }
    }

    #[test]
    fn a_line_describes_one_allocator() {
        let text = "my pool: alloc Pool::get(size=arg2) -> ptr; free Pool::put(ptr=arg1);";
        let one = Allocator::parse(text).expect("it is right");
        assert_eq!((one.name.as_str(), one.functions.len()), ("my pool", 2));
        assert_eq!(one.functions[1].does.role, DescribedRole::Releases);
        let unnamed = Allocator::parse("alloc libpool.so!get(size=arg1) -> ptr");
        assert_eq!(unnamed.expect("it is right").name, "libpool.so get");
        for (text, why) in [
            ("", "no function"),
            ("pool: ", "no function"),
            (
                "pool_get(size=arg1) -> ptr",
                "expected alloc, free or realloc",
            ),
            ("free pool_put(ptr=arg1)", "allocates"),
            ("alloc pool_get(size=arg9) -> ptr", "arg9"),
            (
                "heap!: alloc get(size=arg1) -> ptr",
                "not a name for a heap",
            ),
        ] {
            let found = Allocator::parse(text).expect_err(text);
            assert!(found.contains(why), "{text}: {found}");
        }
    }

    #[test]
    fn a_file_has_several_heaps() {
        let text = r#"
            [[allocator]]
            name = "pool"
            alloc = ["pool_alloc(size=arg2) -> ptr"]
            free = ["pool_free(ptr=arg2)", "pool_drop(ptr=*arg1)"]

            [[allocator]]
            name = "arena"
            alloc = ["arena_get(size=arg1) -> ptr"]
        "#;
        let all = Allocator::file(text).expect("it is right");
        let of = |n: usize| (all[n].name.as_str(), all[n].functions.len());
        assert_eq!((all.len(), of(0), of(1)), (2, ("pool", 3), ("arena", 1)));
    }

    #[test]
    fn a_mistake_in_a_file_has_a_place() {
        for (text, at, why) in [
            ("[[allocator]]\nname = 5", "2:8", "expected a string"),
            (
                "[[allocator]]\nname = \"p\"\nalloc = [\"f(size=arg9) -> ptr\"]",
                "3:10",
                "arg9",
            ),
            (
                "[[allocator]]\nname = \"p\"\nallok = \"f\"",
                "3:1",
                "unknown field",
            ),
            ("[[allocator]]\nname = \"p\"", "2:8", "allocates"),
            (
                "[[allocator]]\nname = \"malloc\"\nalloc = [\"f(size=arg1)->ptr\"]",
                "2:8",
                "two heaps",
            ),
            ("", "1:1", "no [[allocator]]"),
            ("[[allocator]\n", "1:", "expected"),
        ] {
            let found = Allocator::file(text).expect_err(text);
            assert!(
                found.starts_with(at) && found.contains(why),
                "{text}: {found}"
            );
            assert!(!found.contains('\n'), "{found}");
        }
    }
}
