//! `#[test]` for tests that need programs which are not everywhere.
//!
//! A test program that begins with `#[macro_use] extern crate memhook_tests;` has this attribute in place of Rust's. A test
//! then passes where something that it needs is not installed, however deep in it that is found out, and says so.

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// Declares a test whose body `memhook_tests::unless_left` calls.
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
