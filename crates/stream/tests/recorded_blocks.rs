//! The hook's table of recorded blocks, used by several threads.

#[expect(dead_code, reason = "this program makes its own region")]
mod hook_program;

#[test]
fn no_recorded_block_is_forgotten_and_no_page_stays_marked() {
    let program = hook_program::compile("recorded_blocks.cc", "recorded_blocks", &[]);
    let output = std::process::Command::new(program).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
}
