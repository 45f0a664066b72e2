//! On terminals that show only ASCII, reports and `top` use ASCII characters.

use memhook_tests::programs::Folder;
use memhook_tests::terminal::Terminal;
use memhook_tests::{binary, build_target, run_with};

#[test]
fn a_terminal_without_utf8() {
    let folder = Folder::new("charset");
    let file = folder.path("run.mhk");
    let program = build_target("leaks", &[]);
    let program = program.to_str().expect("UTF-8");
    let script = format!(
        "printf g | '{}' run -qo '{file}' -- '{program}'",
        binary().display()
    );
    let recorded = std::process::Command::new("sh")
        .args(["-c", &script])
        .output();
    assert!(recorded.expect("sh").status.success());
    for (name, command, drawn) in [
        (
            "report",
            format!("report '{file}' --tree bottom-up"),
            "ended=0",
        ),
        ("top", format!("top --from '{file}'"), "leak_by_growing"),
    ] {
        for (locale, is_ascii) in [("C", true), ("C.UTF-8", false)] {
            let command = format!(
                "LC_ALL= LC_CTYPE= LANG={locale} '{}' {command}; echo \"ended=$?\"; sleep 1000",
                binary().display()
            );
            let terminal =
                Terminal::of_size(&format!("charset-{name}-{locale}"), &command, 140, 120);
            terminal.wait_for(drawn);
            let screen = terminal.screen();
            assert_eq!(
                screen.is_ascii(),
                is_ascii,
                "{name} with LANG={locale}: {screen}"
            );
        }
    }
    // Files always contain UTF-8.
    let (code, out, errors) = run_with(
        &["report", &file, "--tree", "bottom-up"],
        &[("LC_ALL", "C")],
    );
    assert_eq!(code, 0, "{errors}");
    assert!(!out.is_ascii(), "{out}");
}
