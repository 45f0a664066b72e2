//! Operators: their codes, their spellings, and the expressions that they form.

use Form::*;

/// Form of an operator in an expression.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Form {
    Prefix,
    Postfix,
    Binary,
    Member,
    Index,
    Call,
    Conditional,
    /// The operator has a separate rule in expressions.
    Other,
}

pub(super) const OPERATORS: [(&str, &str, Form); 61] = [
    ("aN", "&=", Binary),
    ("aS", "=", Binary),
    ("aa", "&&", Binary),
    ("ad", "&", Prefix),
    ("an", "&", Binary),
    ("aw", "co_await ", Prefix),
    ("cl", "()", Call),
    ("cm", ",", Binary),
    ("co", "~", Prefix),
    ("dV", "/=", Binary),
    ("da", "delete[] ", Prefix),
    ("de", "*", Prefix),
    ("dl", "delete ", Prefix),
    ("ds", ".*", Member),
    ("dt", ".", Member),
    ("dv", "/", Binary),
    ("eO", "^=", Binary),
    ("eo", "^", Binary),
    ("eq", "==", Binary),
    ("ge", ">=", Binary),
    ("gt", ">", Binary),
    ("ix", "[]", Index),
    ("lS", "<<=", Binary),
    ("le", "<=", Binary),
    ("ls", "<<", Binary),
    ("lt", "<", Binary),
    ("mI", "-=", Binary),
    ("mL", "*=", Binary),
    ("mi", "-", Binary),
    ("ml", "*", Binary),
    ("mm", "--", Postfix),
    ("na", "new[]", Other),
    ("ne", "!=", Binary),
    ("ng", "-", Prefix),
    ("nt", "!", Prefix),
    ("nw", "new", Other),
    ("oR", "|=", Binary),
    ("oo", "||", Binary),
    ("or", "|", Binary),
    ("pL", "+=", Binary),
    ("pl", "+", Binary),
    ("pm", "->*", Member),
    ("pp", "++", Postfix),
    ("ps", "+", Prefix),
    ("pt", "->", Member),
    ("qu", "?", Conditional),
    ("rM", "%=", Binary),
    ("rS", ">>=", Binary),
    ("rm", "%", Binary),
    ("rs", ">>", Binary),
    ("ss", "<=>", Binary),
    ("sc", "static_cast", Other),
    ("dc", "dynamic_cast", Other),
    ("rc", "reinterpret_cast", Other),
    ("cc", "const_cast", Other),
    ("st", "sizeof ", Other),
    ("sz", "sizeof ", Other),
    ("at", "alignof ", Other),
    ("az", "alignof ", Other),
    ("te", "typeid ", Other),
    ("ti", "typeid ", Other),
];

pub(super) fn operator(code: &str) -> Option<(&'static str, Form)> {
    let found = OPERATORS.iter().find(|(known, ..)| *known == code)?;
    Some((found.1, found.2))
}

/// Abbreviations of the standard library: code, name, full name, name of its constructors.
pub(super) const STANDARD: [(u8, &str, &str, &str); 6] = [
    (b'a', "std::allocator", "std::allocator", "allocator"),
    (
        b'b',
        "std::basic_string",
        "std::basic_string",
        "basic_string",
    ),
    (
        b's',
        "std::string",
        "std::basic_string<char, std::char_traits<char>, std::allocator<char> >",
        "basic_string",
    ),
    (
        b'i',
        "std::istream",
        "std::basic_istream<char, std::char_traits<char> >",
        "basic_istream",
    ),
    (
        b'o',
        "std::ostream",
        "std::basic_ostream<char, std::char_traits<char> >",
        "basic_ostream",
    ),
    (
        b'd',
        "std::iostream",
        "std::basic_iostream<char, std::char_traits<char> >",
        "basic_iostream",
    ),
];

pub(super) fn builtin(code: u8) -> Option<&'static str> {
    Some(match code {
        b'v' => "void",
        b'w' => "wchar_t",
        b'b' => "bool",
        b'c' => "char",
        b'a' => "signed char",
        b'h' => "unsigned char",
        b's' => "short",
        b't' => "unsigned short",
        b'i' => "int",
        b'j' => "unsigned int",
        b'l' => "long",
        b'm' => "unsigned long",
        b'x' => "long long",
        b'y' => "unsigned long long",
        b'n' => "__int128",
        b'o' => "unsigned __int128",
        b'f' => "float",
        b'd' => "double",
        b'e' => "long double",
        b'g' => "__float128",
        b'z' => "...",
        _ => return None,
    })
}

/// Returns the builtin type for the second letter of a two-letter code.
pub(super) fn long_builtin(code: u8) -> Option<&'static str> {
    Some(match code {
        b'd' => "decimal64",
        b'e' => "decimal128",
        b'f' => "decimal32",
        b'h' => "half",
        b'i' => "char32_t",
        b's' => "char16_t",
        b'u' => "char8_t",
        b'a' => "auto",
        b'c' => "decltype(auto)",
        b'n' => "decltype(nullptr)",
        _ => return None,
    })
}
