//! A `#[test]` for tests that need programs which are not installed everywhere.
//!
//! A test program that begins with `#[macro_use] extern crate memhook_tests;` gets this attribute
//! in place of Rust's. If such a test finds, at any depth, that something it needs is not
//! installed, it passes and prints what is missing.

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// Declares a test whose body is called by `memhook_tests::unless_left`.
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
