//! Servers of the distribution that fork a process for each client, or for each worker.

use memhook_tests::programs::{Client, Folder, installed, nginx_configuration, server};
use memhook_tests::{Attacher, Target, run, until};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

fn json_of_attach(pid: &str) -> serde_json::Value {
    let (code, output, errors) = run(&["attach", "--json", "-d", "300ms", pid]);
    assert_eq!(code, 0, "{errors}");
    serde_json::from_str(output.lines().last().expect("a report")).expect("JSON")
}

fn children_of(pid: u32) -> Vec<String> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(path).expect("the server lives");
    text.split_ascii_whitespace().map(str::to_owned).collect()
}

/// A program of PostgreSQL's, the newest version that is installed.
fn postgresql(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten();
    let mut found: Vec<PathBuf> = versions
        .flatten()
        .map(|version| version.path().join("bin").join(name))
        .filter(|file| file.is_file())
        .collect();
    found.sort();
    found.pop().unwrap_or_else(|| {
        panic!("cannot run this test: postgresql is not installed (see .ci/run)")
    })
}

/// It does not run as root.
fn as_nobody(program: PathBuf) -> Command {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        return Command::new(program);
    }
    let mut command = Command::new(installed("setpriv"));
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.arg(program);
    command
}

/// Those of its children that serve clients: they say so in their command line.
fn backends_of(pid: u32) -> Vec<String> {
    let mut children = children_of(pid);
    children.retain(|child| {
        let line = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("tester postgres [local]")
    });
    children
}

fn pgbench(folder: &Folder, options: &[&str]) -> Command {
    let mut command = as_nobody(postgresql("pgbench"));
    command.args(["-h", &folder.path(""), "-U", "tester"]);
    command.args(options).arg("postgres");
    command
}

fn succeeds(child: Child) {
    let output = child.wait_with_output().expect("it ends");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
}

#[test]
fn postgresql_and_its_backends() {
    let folder = Folder::new("postgresql");
    let data = folder.path("data");
    std::fs::create_dir(&data).expect("a folder");
    for path in [folder.path(""), data.clone()] {
        // Elsewhere than root there is nobody to give it to.
        let _ = std::os::unix::fs::chown(path, Some(65534), Some(65534));
    }
    let mut initdb = as_nobody(postgresql("initdb"));
    initdb.args(["-D", &data, "-U", "tester", "-A", "trust", "--no-sync"]);
    let output = initdb.current_dir("/").output().expect("initdb");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut command = as_nobody(postgresql("postgres"));
    command.args(["-D", &data, "-k", &folder.path(""), "-F"]);
    command.args(["-c", "listen_addresses=", "-c", "logging_collector=off"]);
    command.stderr(Stdio::null());
    let postmaster = server(&mut command, &folder.path(".s.PGSQL.5432"));
    let quiet = |command: &mut Command| {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().expect("it starts")
    };
    until("the server takes clients", || {
        let mut command = pgbench(&folder, &["-i", "-q"]);
        let output = command.output().expect("pgbench");
        output.status.success()
    });

    until("the last of them has gone", || {
        backends_of(postmaster.pid()).is_empty()
    });

    // Backends forked while the postmaster is traced, and long after.
    let attacher = Attacher::start(&postmaster, &[]);
    // Ended below; it ends by itself if it loses a backend.
    let mut load = quiet(&mut pgbench(&folder, &["-c", "3", "-T", "80"]));
    until("three backends", || {
        backends_of(postmaster.pid()).len() >= 3
    });
    let backends = backends_of(postmaster.pid());
    let report = json_of_attach(&backends[0]);
    assert!(
        report["totals"]["allocations"].as_u64() > Some(0),
        "{report}"
    );
    attacher.finish();
    for backend in &backends[..3] {
        let (code, output, errors) = run(&["detach", backend]);
        assert_eq!(code, 0, "{output}{errors}");
        let report = json_of_attach(backend);
        assert!(
            report["totals"]["allocations"].as_u64() > Some(0),
            "{report}"
        );
    }
    // Once more, and its attacher dies.
    Attacher::start(&postmaster, &[]).kill();
    let late = quiet(&mut pgbench(&folder, &["-c", "2", "-t", "50", "-C"]));
    json_of_attach(&backends[1]);
    let (code, output, errors) = run(&["detach", &postmaster.pid().to_string()]);
    assert_eq!(code, 0, "{output}{errors}");
    Attacher::start(&postmaster, &[]).finish();
    succeeds(late);
    assert!(
        load.try_wait().expect("its status").is_none(),
        "pgbench lost a backend"
    );
    load.kill().expect("killed");
    load.wait().expect("reaped");
    postmaster.signal(libc::SIGINT);
    assert!(postmaster.finish().success());
}

fn page(socket: &str) {
    let mut client = Client::connect(socket);
    client.send("GET /index.html HTTP/1.0\r\n\r\n");
    assert_eq!(client.line(), "HTTP/1.1 200 OK");
}

#[test]
fn nginx_is_told_to_start_new_workers() {
    let folder = Folder::new("nginx-reload");
    std::fs::write(folder.path("index.html"), "hello\n").expect("written");
    let file = nginx_configuration(&folder, "");
    let text = std::fs::read_to_string(&file).expect("readable");
    let text = text.replace(
        "master_process off",
        "master_process on; worker_processes 2",
    );
    std::fs::write(&file, text).expect("written");
    // Workers give up root for a user who must be able to read the page.
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder.path(""), PermissionsExt::from_mode(0o755)).expect("ours");
    let mut command = Command::new(installed("nginx"));
    command.args(["-c", &file, "-p", &folder.path(""), "-e", "stderr"]);
    let socket = folder.path("socket");
    let master: Target = server(&mut command, &socket);
    let attacher = Attacher::start(&master, &[]);
    for _ in 0..3 {
        let before = children_of(master.pid());
        master.signal(libc::SIGHUP);
        until("new workers", || {
            let now = children_of(master.pid());
            now.len() == 2 && now.iter().all(|worker| !before.contains(worker))
        });
        page(&socket);
        for worker in children_of(master.pid()) {
            json_of_attach(&worker);
            page(&socket);
        }
    }
    let report = attacher.finish();
    assert!(
        report["totals"]["allocations"].as_u64() > Some(0),
        "{report}"
    );
    page(&socket);
    Attacher::start(&master, &[]).finish();
    for worker in children_of(master.pid()) {
        let (code, output, errors) = run(&["detach", &worker]);
        assert_eq!(code, 0, "{output}{errors}");
    }
    page(&socket);
    master.signal(libc::SIGQUIT);
    assert!(master.finish().success());
}
