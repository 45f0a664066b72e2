//! Files of modules are read only once, and again only after they have changed.

use memhook_process::{ModuleFiles, ModuleImage, mappings, modules};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// Program that loads a library and reports it.
const PROGRAM: &str = r#"
    #include <dlfcn.h>
    #include <stdio.h>
    #include <unistd.h>
    int main(int argc, char **argv) {
        puts(dlopen(argv[1], RTLD_NOW) ? "loaded" : dlerror());
        fflush(stdout);
        pause();
    }"#;

struct Target {
    child: Child,
    directory: PathBuf,
}

impl Target {
    fn compile(directory: &std::path::Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
        let (c, out) = (directory.join("source.c"), directory.join(name));
        std::fs::write(&c, source).unwrap();
        let mut cc = Command::new("cc");
        let status = cc.arg("-o").arg(&out).arg(&c).args(flags).status();
        assert!(status.unwrap().success(), "{name}");
        out
    }

    fn look(&self, files: &mut ModuleFiles) -> Vec<ModuleImage> {
        let pid = self.child.id() as i32;
        modules(pid, &mappings(pid).unwrap(), files).unwrap()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[test]
fn a_file_is_read_again_when_it_has_changed() {
    let directory = format!("memhook-module-files-{}", std::process::id());
    let directory = std::env::temp_dir().join(directory);
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    let program = Target::compile(&directory, "program", PROGRAM, &["-ldl"]);
    let flags = ["-shared", "-fPIC", "-Wl,-soname,first.so"];
    let source = "#include <stdlib.h>\nvoid *get(void) { return malloc(9); }";
    let library = Target::compile(&directory, "library.so", source, &flags);
    let mut child = Command::new(program)
        .arg(&library)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "loaded\n");
    let target = Target { child, directory };

    let mut files = ModuleFiles::new();
    let first = target.look(&mut files);
    let again = target.look(&mut files);
    assert!(first.len() >= 4, "program, library, C library, loader");
    assert_eq!(first.len(), again.len());
    for (a, b) in first.iter().zip(&again) {
        assert!(Arc::ptr_eq(&a.bytes, &b.bytes), "{}", a.path);
        assert!(Arc::ptr_eq(&a.facts, &b.facts), "{}", a.path);
    }

    // The same inode with other contents.
    let mut changed = std::fs::read(&library).unwrap();
    let at = changed.windows(8).position(|w| w == b"first.so").unwrap();
    changed[at..at + 8].copy_from_slice(b"other.so");
    std::fs::write(&library, changed).unwrap();
    let now = target.look(&mut files);
    for (a, b) in first.iter().zip(&now) {
        let is_same = !a.path.ends_with("/library.so");
        assert_eq!(Arc::ptr_eq(&a.facts, &b.facts), is_same, "{}", a.path);
        assert_eq!(a.bytes[..] == b.bytes[..], is_same, "{}", a.path);
    }
}
