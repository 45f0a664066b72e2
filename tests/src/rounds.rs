//! Number of rounds in tests for rare faults.

/// Enough rounds to see that the test works. CI and `cargo xtask nightly` request more.
const FEW: usize = 3;

/// Returns the number of rounds of a test: a few, or the number in the variable
/// MEMHOOK_TEST_ROUNDS, but at most `most`.
///
/// # Panics
///
/// Panics if the variable does not contain a number above 0, because a test without a round would
/// always pass.
#[must_use]
pub fn rounds(most: usize) -> usize {
    let Some(asked) = std::env::var_os("MEMHOOK_TEST_ROUNDS") else {
        return most.min(FEW);
    };
    let number = asked.to_str().and_then(|number| number.parse().ok());
    let number: usize = number.filter(|&number| number > 0).unwrap_or_else(|| {
        panic!("MEMHOOK_TEST_ROUNDS is {asked:?}, which is not a number of rounds")
    });
    most.min(number)
}
