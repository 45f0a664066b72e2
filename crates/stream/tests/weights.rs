//! The weight of an emitted allocation, computed without floating point.

#[expect(dead_code, reason = "this program needs no region")]
mod hook_program;

#[test]
fn weights_are_those_of_the_formula() {
    let program = hook_program::compile("weights.cc", "weights", &[]);
    let output = std::process::Command::new(program).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
}
