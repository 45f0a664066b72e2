//! Servers of the distribution that fork a process for each client, or for each worker.

use memhook_tests::programs::{Client, Folder, installed, nginx_configuration, server};
use memhook_tests::{Attacher, Target, build_library, leave, run, sites, until};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

fn json_of_attach(pid: &str) -> serde_json::Value {
    json_of_attach_for(pid, "300ms")
}

fn json_of_attach_for(pid: &str, duration: &str) -> serde_json::Value {
    let (code, output, errors) = run(&["attach", "--json", "-d", duration, pid]);
    assert_eq!(code, 0, "{errors}");
    serde_json::from_str(output.lines().last().expect("a report")).expect("JSON")
}

/// Checks that the trace of a working backend contains allocations. Repeats the trace with a longer
/// duration if the backend was suspended.
fn allocates(pid: &str) {
    let mut reports = ["300ms", "3s", "10s", "20s"]
        .into_iter()
        .map(|duration| json_of_attach_for(pid, duration));
    let has_allocated =
        |report: &serde_json::Value| report["totals"]["allocations"].as_u64() > Some(0);
    assert!(
        reports.any(|report| has_allocated(&report)),
        "backend {pid}"
    );
}

fn children_of(pid: u32) -> Vec<String> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(path).expect("the server lives");
    text.split_ascii_whitespace().map(str::to_owned).collect()
}

/// Returns a program of the newest installed PostgreSQL.
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
    found
        .pop()
        .unwrap_or_else(|| leave("postgres is not installed (apt-get install postgresql)"))
}

/// Runs a program as nobody, because PostgreSQL refuses to run as root.
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

/// Returns the children of a server that serve clients, according to their command lines.
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

/// Starts a server in the folder, and returns when it accepts clients and has none.
fn postgresql_server(folder: &Folder) -> Target {
    let data = folder.path("data");
    std::fs::create_dir(&data).expect("a folder");
    for path in [folder.path(""), data.clone()] {
        // Without root this fails, and is not necessary.
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
    until("the server takes clients", || {
        let mut command = pgbench(folder, &["-i", "-q"]);
        let output = command.output().expect("pgbench");
        output.status.success()
    });
    until("the last of them has gone", || {
        backends_of(postmaster.pid()).is_empty()
    });
    postmaster
}

fn quiet(command: &mut Command) -> Child {
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().expect("it starts")
}

#[test]
fn postgresql_and_its_backends() {
    let folder = Folder::new("postgresql");
    let postmaster = postgresql_server(&folder);

    // These backends are forked during the trace of the postmaster, and outlive the trace.
    let attacher = Attacher::start(&postmaster, &[]);
    // pgbench is killed below. It also exits if it loses a backend.
    let mut load = pgbench(&folder, &["-c", "3", "-T", "600"]);
    let mut load = quiet(load.env("PGAPPNAME", "load"));
    let mut session = Session::open(&folder);
    let backends = session.backends_at_work(3);
    assert!(session.0.finish().success());
    allocates(&backends[0]);
    attacher.finish();
    for backend in &backends {
        let (code, output, errors) = run(&["detach", backend]);
        assert_eq!(code, 0, "{output}{errors}");
        allocates(backend);
    }
    // Attaches again, and kills the attacher.
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

/// A session of psql(1).
struct Session(Target);

impl Session {
    fn open(folder: &Folder) -> Session {
        let mut command = as_nobody(postgresql("psql"));
        command.args(["-h", &folder.path(""), "-U", "tester", "-XqAt", "postgres"]);
        Session(Target::silent(&mut command))
    }

    /// Sends a statement, and returns the server's answer.
    fn ask(&mut self, statement: &str) -> String {
        self.0.send(&format!("{statement};\n"));
        self.0.expect("").trim().to_owned()
    }

    /// Waits until this many backends work for the pgbench named `load`. Another backend, for its
    /// first queries, precedes them.
    fn backends_at_work(&mut self, count: usize) -> Vec<String> {
        let pids = "SELECT coalesce(string_agg(pid::text, ' '), '-') FROM pg_stat_activity";
        let working = "application_name = 'load' AND query ~ '^(BEGIN|UPDATE|INSERT|END)'";
        let mut backends = Vec::new();
        until("the backends are at work", || {
            let pids = self.ask(&format!("{pids} WHERE {working}"));
            backends = pids.split(' ').map(str::to_owned).collect();
            backends.len() == count
        });
        backends
    }
}

/// One attacher traces the postmaster and all of its children. Checks that killing the attacher is
/// safe.
#[test]
fn every_backend_of_postgresql_is_followed() {
    let folder = Folder::new("postgresql-followed");
    let postmaster = postgresql_server(&folder);
    let bin = postgresql("postgres");
    let version = bin.iter().rev().nth(2).and_then(|name| name.to_str());
    let flag = format!(
        "-DVERSION={}",
        version.expect("/usr/lib/postgresql/VERSION/bin")
    );
    let file = format!("postgresql_leak-{}.so", version.expect("a number"));
    let library = folder.path("leak.so");
    std::fs::copy(build_library("postgresql_leak", &file, &[&flag]), &library).expect("copied");

    let mut attacher = Attacher::start(&postmaster, &["--follow-fork"]);
    let mut sessions = [Session::open(&folder), Session::open(&folder)];
    sessions[0].0.send(&format!(
        "CREATE FUNCTION forget() RETURNS integer AS '{library}' LANGUAGE C;\n"
    ));
    let pids = sessions
        .each_mut()
        .map(|session| session.ask("SELECT pg_backend_pid()"));
    // pgbench is killed below. It also exits if it loses a backend.
    let mut load = pgbench(&folder, &["-c", "2", "-T", "600"]);
    let mut load = quiet(load.env("PGAPPNAME", "load"));
    let of_load = sessions[0].backends_at_work(2);
    let short = quiet(&mut pgbench(&folder, &["-c", "2", "-t", "20", "-C"]));
    let wanted = |pid: &String| format!("Attached to {pid} ");
    let mut awaited: Vec<String> = pids.iter().chain(&of_load).map(wanted).collect();
    while !awaited.is_empty() {
        let line = attacher.says("Attached to ");
        awaited.retain(|beginning| !line.starts_with(beginning));
    }
    let calls = [100, 37];
    for (session, calls) in sessions.iter_mut().zip(calls) {
        let sum = session.ask(&format!(
            "SELECT sum(forget()) FROM generate_series(1, {calls})"
        ));
        assert_eq!(sum, (calls * 3).to_string());
    }
    succeeds(short);
    // One session ends during the trace, and the other continues.
    let [first, second] = sessions;
    assert!(first.0.finish().success());
    until("its backend has gone", || {
        !backends_of(postmaster.pid()).contains(&pids[0])
    });
    let (status, errors, reports) = attacher.last_reports();
    assert!(status.success(), "{status}: {errors}");
    for (pid, calls) in pids.iter().zip(calls) {
        let report = &reports[&pid.parse().expect("a pid")];
        assert_eq!(report["totals"]["lost_events"], 0);
        let leaked = sites(report, "postgresql_leak.cc");
        let of_function = leaked.get(&("forget_a_block".to_owned(), "malloc".to_owned()));
        let expected = (calls * 3, calls * 3 * 1234);
        assert_eq!(of_function, Some(&expected), "{report}");
    }
    for pid in &of_load {
        let report = &reports[&pid.parse().expect("a pid")];
        let allocations = report["totals"]["allocations"].as_u64();
        assert!(allocations > Some(0), "{report}");
    }

    // Attaches again, and kills the attacher while backends start and exit.
    let short = quiet(&mut pgbench(&folder, &["-c", "2", "-t", "50", "-C"]));
    let mut attacher = Attacher::start(&postmaster, &["--follow-fork"]);
    for _ in 0..6 {
        attacher.says("Attached to ");
    }
    attacher.kill();
    succeeds(short);
    assert!(
        load.try_wait().expect("its status").is_none(),
        "pgbench lost a backend"
    );
    let mut second = second;
    assert_eq!(second.ask("SELECT 6 * 7"), "42");
    assert!(second.0.finish().success());
    load.kill().expect("killed");
    load.wait().expect("reaped");
    let (code, output, errors) = run(&["detach", &postmaster.pid().to_string()]);
    assert_eq!(code, 0, "{output}{errors}");
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
    // Workers run as a non-root user, who must be able to read the page.
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
