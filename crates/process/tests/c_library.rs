//! Finds the C library of real programs, among files that only look like one.

use memhook_process::{
    CLibrary, CLibraryKind, ModuleImage, ModulePart, RemoteAddress, first_failure, mappings,
    module_part, modules, preflight,
};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A directory that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let directory = format!("memhook-c-library-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(directory);
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        Scratch(directory)
    }

    /// Compiles a C program or library.
    fn build(&self, name: &str, source: &str, flags: &[&str]) -> PathBuf {
        let (c, out) = (self.0.join(format!("{name}.c")), self.0.join(name));
        std::fs::write(&c, source).unwrap();
        let mut cc = Command::new("cc");
        cc.arg("-o").arg(&out).arg(&c).args(flags);
        assert!(cc.status().unwrap().success(), "{name}");
        out
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A program that prints addresses, and then waits.
struct Running {
    child: Child,
    addresses: Vec<u64>,
}

impl Running {
    fn start(command: &mut Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let parse = |word| u64::from_str_radix(word, 16).unwrap();
        let addresses = line.split_whitespace().map(parse).collect();
        Running { child, addresses }
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Program that maps each given file as executable at low addresses, opens the C library in another namespace, and
/// prints the addresses of functions in its own C library.
const PROGRAM: &str = r#"
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <fcntl.h>
    #include <gnu/libc-version.h>
    #include <stdio.h>
    #include <sys/mman.h>
    #include <unistd.h>
    int main(int argc, char **argv) {
        for (long i = 1; i < argc; i++) {
            int fd = open(argv[i], O_RDONLY);
            void *low = (void *)(0x10000000L * i);
            int flags = MAP_PRIVATE | MAP_FIXED_NOREPLACE;
            if (mmap(low, 0x100000, PROT_READ | PROT_EXEC, flags, fd, 0) != low) return 1;
        }
        if (!dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW)) return 2;
        printf("%lx %lx\n", (long)gnu_get_libc_version, (long)dlopen);
        fflush(stdout);
        pause();
    }"#;

/// Library that claims to be the C library, and to contain every function of the C library that is called.
const CLAIM: &str = r#"
    char *gnu_get_libc_version(void) { return "2.99"; }
    int __libc_start_main(void) { return 1; }
    int *__errno_location(void) { __builtin_trap(); }
    void *dlopen(void) { __builtin_trap(); }
    void *malloc(void) { __builtin_trap(); }
    void free(void) { __builtin_trap(); }"#;

#[test]
fn a_file_that_only_has_its_name_is_not_the_c_library() {
    let scratch = Scratch::new("names");
    let program = scratch.build("program", PROGRAM, &["-ldl"]);
    let real = Path::new("/lib/x86_64-linux-gnu/libc.so.6");
    let flags = [
        "-shared",
        "-nostdlib",
        "-fno-builtin",
        "-fPIC",
        "-Wl,-soname,libc.so.6",
    ];
    let claim = scratch.build("libc.so.6", CLAIM, &flags);
    let copy = scratch.0.join("libc-2.31.so");
    std::fs::copy(real, &copy).unwrap();
    let text = scratch.0.join("libc.so.6.txt");
    std::fs::write(&text, "no library at all".repeat(1000)).unwrap();
    let target = Running::start(Command::new(&program).args([&claim, &copy, &text]));
    let pid = target.pid();
    let maps = mappings(pid).unwrap();
    let first = maps.first().unwrap();
    assert_eq!(
        first.path,
        claim.to_string_lossy(),
        "before everything else"
    );

    let libc = CLibrary::of(pid, &maps).expect("it runs on glibc");
    assert_eq!(libc.kind, CLibraryKind::Glibc);
    let named = ["gnu_get_libc_version", "dlopen"].map(|name| libc.function(name));
    let told = target
        .addresses
        .iter()
        .copied()
        .map(RemoteAddress)
        .map(Some);
    assert_eq!(named.to_vec(), told.collect::<Vec<_>>());
    assert!(libc.code.contains(target.addresses[0]));
    assert_eq!(libc.function("no_such_function"), None);

    let modules = modules(pid, &maps, &mut Default::default()).unwrap();
    let mut found = modules.iter().filter(|m| m.is_libc);
    assert!(found.next().unwrap().contains(target.addresses[0]));
    assert!(found.next().is_none());
    assert_eq!(modules.iter().filter(|m| m.is_loader).count(), 1);
    let of_glibc = |m: &&ModuleImage| module_part(m) == ModulePart::Glibc;
    assert!(
        modules.iter().filter(of_glibc).count() >= 2,
        "of both namespaces"
    );
    let others: Vec<_> = modules
        .iter()
        .filter(|m| m.path.ends_with("/libc.so.6") && !m.is_libc)
        .filter(|m| m.start > 0x1_0000_0000)
        .collect();
    assert_eq!(others.len(), 1, "that of the other namespace");
    assert_eq!(module_part(others[0]), ModulePart::Glibc);
    assert_eq!(first_failure(&preflight(pid)), None);
}

/// If a function replaces one of the C library, loading a library calls the replacement, which may take its own lock.
#[test]
fn whatever_stands_in_for_a_part_of_loading_may_keep_its_locks() {
    let scratch = Scratch::new("stand-ins");
    let program = r#"
        #include <stdio.h>
        #include <unistd.h>
        int main() { puts("0"); fflush(stdout); pause(); }"#;
    let program = scratch.build("program", program, &[]);
    let as_library = ["-shared", "-fPIC", "-fno-builtin"];
    for (name, source, part) in [
        ("freeing", "void free(void *block) {}", ModulePart::Locking),
        (
            "zeroing",
            "void *calloc(long n, long size) { return 0; }",
            ModulePart::Locking,
        ),
        (
            "opening",
            "void *dlopen(const char *name, int flags) { return 0; }",
            ModulePart::Locking,
        ),
        (
            "listing",
            "int dl_iterate_phdr(void *call, void *data) { return 0; }",
            ModulePart::Locking,
        ),
        ("other", "void release(void *block) {}", ModulePart::Program),
    ] {
        let library = scratch.build(name, source, &as_library);
        let target = Running::start(Command::new(&program).env("LD_PRELOAD", &library));
        let pid = target.pid();
        let modules = modules(pid, &mappings(pid).unwrap(), &mut Default::default()).unwrap();
        let path = library.to_string_lossy();
        let preloaded = modules.iter().find(|m| m.path == path).expect("preloaded");
        assert_eq!(module_part(preloaded), part, "{name}");
    }
}

/// Other versions, each started by its own loader; `cargo xtask debian-roots` fetches them.
#[test]
fn the_c_libraries_of_other_releases() {
    let scratch = Scratch::new("releases");
    for release in ["bullseye", "trixie", "sid", "experimental"] {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/debian-roots");
        let directories =
            ["lib", "usr/lib"].map(|part| root.join(release).join(part).join("x86_64-linux-gnu"));
        let loaders = directories
            .each_ref()
            .map(|d| d.join("ld-linux-x86-64.so.2"));
        let Some(loader) = loaders.iter().find(|loader| loader.exists()) else {
            eprintln!("{release} is left out: run cargo xtask debian-roots first");
            continue;
        };
        let path = directories
            .each_ref()
            .map(|d| d.to_string_lossy().into_owned())
            .join(":");
        // The program does not use the start-up code of this system's release, because an older release lacks its
        // symbols.
        let source = r#"
            extern char *gnu_get_libc_version(void);
            extern int dlopen(), printf(const char *, ...), pause(void), fflush(void *), pthread_create();
            void _start(void) {
                __asm__("and $-16, %rsp");
                printf("%lx %lx %lx\n", (long)gnu_get_libc_version, (long)dlopen, (long)pthread_create);
                fflush(0);
                pause();
            }"#;
        let parts = ["libc.so.6", "libdl.so.2", "libpthread.so.0"]
            .map(|part| loader.with_file_name(part).to_string_lossy().into_owned());
        let mut flags = vec![
            "-nostdlib",
            "-nostartfiles",
            "-fPIE",
            "-pie",
            "-Wl,--no-as-needed",
        ];
        flags.extend(parts.iter().map(String::as_str));
        flags.push("-Wl,--allow-shlib-undefined");
        let program = scratch.build(release, source, &flags);
        let mut command = Command::new(loader);
        let target = Running::start(command.arg("--library-path").arg(path).arg(program));
        let libc = CLibrary::of(target.pid(), &mappings(target.pid()).unwrap()).expect(release);
        let names = ["gnu_get_libc_version", "dlopen", "pthread_create"];
        let found = names.map(|name| libc.function(name));
        let told = target
            .addresses
            .iter()
            .copied()
            .map(RemoteAddress)
            .map(Some);
        assert_eq!(found.to_vec(), told.collect::<Vec<_>>(), "{release}");
        assert!(libc.function("__errno_location").is_some());
        assert!(libc.function("dlerror").is_some());
    }
}

/// This test program is static.
#[test]
fn a_static_program_has_no_c_library() {
    let pid = std::process::id() as i32;
    assert!(CLibrary::of(pid, &mappings(pid).unwrap()).is_none());
}
