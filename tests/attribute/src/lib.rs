//! A `#[test]` attribute for tests of programs that may not be installed.
//!
//! A test program that begins with `#[macro_use] extern crate memhook_tests;` gets this attribute
//! instead of Rust's. If a required program is missing, at any depth of such a test, the test
//! passes and prints what is missing.

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// Declares a test and calls its body through `memhook_tests::unless_left`.
#[proc_macro_attribute]
pub fn test(_: TokenStream, item: TokenStream) -> TokenStream {
    let mut function: Vec<TokenTree> = item.into_iter().collect();
    let body = function.pop();
    let in_group = |delimiter, tokens| TokenTree::Group(Group::new(delimiter, tokens));
    let closure: TokenStream = "||".parse().expect("valid");
    let closure = closure.into_iter().chain(body).collect();
    let call: TokenStream = "::memhook_tests::unless_left".parse().expect("valid");
    let call = call.into_iter();
    let call = call.chain([in_group(Delimiter::Parenthesis, closure)]);
    let new_body = in_group(Delimiter::Brace, call.collect());
    let attribute: TokenStream = "#[::core::prelude::v1::test]".parse().expect("valid");
    let test = attribute.into_iter().chain(function);
    test.chain([new_body]).collect()
}
