//! Headers of the hook must compile on their own, and leave no macros behind.

use super::root;
use std::io::Write;
use std::process::{Command, Stdio};

/// Returns the compiler's output for a file that includes only this header.
fn compiled(header: &str, options: &[&str]) -> Result<String, String> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let mut child = Command::new(compiler)
        .args("-std=c++20 -ffreestanding -mgeneral-regs-only -Wall -Wextra -Werror".split(' '))
        .args(options)
        .args(["-x", "c++", "-"])
        .current_dir(root().join("hook-cxx"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a C++ compiler is needed");
    let mut source = child.stdin.take().expect("it is a pipe");
    writeln!(source, "#include \"{header}\"").expect("the compiler reads it");
    drop(source);
    let output = child.wait_with_output().expect("the compiler ends");
    let [out, err] = [output.stdout, output.stderr].map(|b| String::from_utf8_lossy(&b).into());
    if output.status.success() {
        Ok(out)
    } else {
        Err(err)
    }
}

#[test]
fn each_compiles_by_itself_and_leaks_no_macro() {
    let mut checked = 0;
    for folder in ["", "arch/x86_64/"] {
        let files = std::fs::read_dir(root().join("hook-cxx").join(folder)).expect("a directory");
        for file in files {
            let name = file.expect("readable").file_name();
            let header = format!("{folder}{}", name.to_string_lossy());
            if !header.ends_with(".hpp") {
                continue;
            }
            checked += 1;
            if let Err(errors) = compiled(&header, &["-fsyntax-only"]) {
                panic!("{header} needs others before it:\n{errors}");
            }
            let macros = compiled(&header, &["-E", "-dM"]).expect("it has just been compiled");
            let names = macros.lines().filter_map(|l| l.strip_prefix("#define "));
            let ours = names.filter(|name| name.starts_with("MEMHOOK_"));
            // The list of functions is a generated macro that other files expand.
            let leaked: Vec<&str> = ours
                .filter(|name| !name.starts_with("MEMHOOK_HOOKED_FUNCTIONS("))
                .collect();
            assert!(leaked.is_empty(), "{header} leaves {leaked:?}");
        }
    }
    assert!(checked > 30, "{checked} headers");
}
