//! How often tests repeat a round whose fault seldom shows.

/// The number of rounds of a test: the usual one, or what the variable MEMHOOK_TEST_ROUNDS asks for, if that is fewer.
///
/// # Panics
///
/// Panics where the variable holds anything but a number above 0: a test without a round would pass whatever is wrong.
#[must_use]
pub fn rounds(usual: usize) -> usize {
    let Some(asked) = std::env::var_os("MEMHOOK_TEST_ROUNDS") else {
        return usual;
    };
    let number = asked.to_str().and_then(|number| number.parse().ok());
    let number: usize = number.filter(|&number| number > 0).unwrap_or_else(|| {
        panic!("MEMHOOK_TEST_ROUNDS is {asked:?}, which is not a number of rounds")
    });
    usual.min(number)
}
