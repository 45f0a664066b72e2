//! `view` from end to end: the page of a recording, in a file and from a server.

use base64::{Engine, engine::general_purpose::STANDARD};
use flate2::read::GzDecoder;
use memhook_tests::programs::Folder;
use memhook_tests::{Attacher, Target, binary, build_target, run};
use serde_json::Value;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

/// Records a run of `leaks.cc`.
fn record(folder: &Folder) -> String {
    let file = folder.path("run.mhk");
    let mut target = Target::start(&build_target("leaks", &[]), &[]);
    let attacher = Attacher::start(&target, &["-o", &file]);
    target.go();
    target.expect("done");
    attacher.finish();
    assert!(target.finish().success(), "the target's self-check");
    file
}

/// Returns the data in the page, as packed by the report crate's `packed.rs`: the head, and the
/// columns.
fn data(page: &str) -> Value {
    let (_, rest) = page.split_once("id=\"data\">").expect("data");
    let (packed, _) = rest.split_once("</script>").expect("its end");
    let bytes = STANDARD.decode(packed.trim()).expect("base64");
    let mut all = Vec::new();
    GzDecoder::new(&bytes[..])
        .read_to_end(&mut all)
        .expect("gzip");
    let (length, rest) = all.split_first_chunk::<4>().expect("a length");
    let (head, numbers) = rest.split_at(u32::from_le_bytes(*length) as usize);
    let mut data: Value = serde_json::from_slice(head).expect("JSON");
    let mut numbers = numbers.iter();
    let mut number = || {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = *numbers.next().expect("as many as the head says");
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        (value >> 1) as i64 ^ -((value & 1) as i64)
    };
    for column in data["columns"].take().as_array().expect("columns") {
        let (name, length) = (column[0].as_str().expect("a name"), column[1].as_u64());
        let mut last = 0;
        let values = (0..length.expect("a length")).map(|_| {
            let value = number() + if column[2] == true { last } else { 0 };
            last = value;
            value
        });
        data[name] = values.collect::<Vec<_>>().into();
    }
    assert_eq!(numbers.len(), 0);
    data
}

fn sum(values: &Value) -> u64 {
    let values = values.as_array().expect("numbers").iter();
    values.map(|value| value.as_u64().expect("a number")).sum()
}

#[test]
fn the_page_holds_the_numbers_of_the_report_and_the_sources() {
    let folder = Folder::new("view");
    let file = record(&folder);
    let page = folder.path("page.html");
    // Without a source folder, the page contains no sources, because debug information may name any
    // file of ours.
    let (code, _, errors) = run(&["view", &file, "-o", &page]);
    assert_eq!((code, errors.lines().count()), (0, 1), "{errors}");
    assert!(errors.contains("--source-dir"), "{errors}");
    let without = data(&std::fs::read_to_string(&page).expect("the page"));
    assert_eq!(without["sources"].as_array().map(Vec::len), Some(0));
    let sources = memhook_tests::source("");
    let sources = sources.to_str().expect("text");
    let (code, out, errors) = run(&[
        "view",
        &file,
        "-o",
        &page,
        "--force",
        "--source-dir",
        sources,
    ]);
    assert_eq!((code, out.trim()), (0, page.as_str()), "{errors}");
    let text = std::fs::read_to_string(&page).expect("the page");
    let data = data(&text);
    let (code, report, errors) = run(&["report", &file, "--json"]);
    assert_eq!(code, 0, "{errors}");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let totals = &report["totals"];
    assert_eq!(
        sum(&data["sites.live.bytes"]),
        totals["live_bytes"].as_u64().expect("bytes")
    );
    assert_eq!(
        sum(&data["sites.live.blocks"]),
        totals["live_blocks"].as_u64().expect("blocks")
    );
    assert_eq!(
        sum(&data["sites.allocated.blocks"]),
        totals["allocations"].as_u64().expect("blocks")
    );
    // The changes of the sites add up to the totals at the end.
    let last_of = |column: &str| {
        data[format!("timeline.live.{column}")]
            .as_array()
            .expect("points")
            .last()
            .cloned()
    };
    assert_eq!(last_of("bytes"), Some(totals["live_bytes"].clone()));
    let has_line = |source: &Value| {
        let lines = source["lines"].as_array().expect("lines").iter();
        let mut lines = lines.filter_map(Value::as_str);
        lines.any(|line| line.contains("block = realloc(block, size);"))
    };
    let mut sources = data["sources"].as_array().expect("sources").iter();
    assert!(sources.any(has_line), "the line of the leak");
    assert_eq!(data["editor"], Value::Null);
    let editor = ["--force", "--editor"];
    let (code, _, errors) = run(&[&["view", &file, "-o", &page], &editor[..], &["zed"]].concat());
    assert_eq!(code, 0, "{errors}");
    let with = self::data(&std::fs::read_to_string(&page).expect("the page"));
    assert_eq!(with["editor"], "zed://file{file}:{line}");
    let refused = ["javascript:{file}"];
    let (code, _, errors) = run(&[&["view", &file, "-o", &page], &editor[..], &refused].concat());
    assert_eq!((code, errors.lines().count()), (2, 1), "{errors}");
    assert!(
        errors.contains("is not the address of an editor"),
        "{errors}"
    );
    // The page loads no external resources.
    for word in ["http://", "https://", "src=", "@import"] {
        assert!(!text.contains(word), "{word}");
    }

    let (code, _, errors) = run(&["view", &file, "-o", &page]);
    assert_eq!(code, 2);
    assert!(
        errors.contains("--force") && errors.lines().count() == 1,
        "{errors}"
    );
    assert_eq!(run(&["view", &file, "-o", &page, "--force"]).0, 0);
}

/// Checks that the page of a sampled recording has the errors of the report, at the end and
/// earlier.
#[test]
fn estimates_carry_their_variances() {
    let folder = Folder::new("view-sampled");
    let file = folder.path("run.mhk");
    let mut target = Target::start(&build_target("sampled", &[]), &[]);
    let attacher = Attacher::start(&target, &["--sample", "8K", "-o", &file]);
    target.go();
    target.expect("done");
    attacher.finish();
    assert!(target.finish().success());
    let (code, report, errors) = run(&["report", &file, "--json"]);
    assert_eq!(code, 0, "{errors}");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let page = folder.path("page.html");
    assert_eq!(run(&["view", &file, "-o", &page]).0, 0);
    let data = data(&std::fs::read_to_string(&page).expect("the page"));
    let expected = report["sampling"]["live_error_bytes"].as_f64();
    let expected = expected.expect("an error");
    let variance = sum(&data["sites.live.variance"]) as f64;
    assert!(
        (variance.sqrt() / expected - 1.0).abs() < 0.01,
        "{variance}"
    );
    let changes = data["changes.live.variance"].as_array();
    assert!(changes.is_some_and(|all| all.iter().any(|value| *value != 0)));
}

fn request(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(
        stream,
        "{request}\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )
    .expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer
}

/// Starts a server for a recording. Returns the server, its address, and the page's path, which
/// includes the token.
fn serve(file: &str, at: &str) -> (Child, String, String) {
    let mut server = Command::new(binary())
        .args(["view", file, "--serve", at])
        .env("XDG_CACHE_HOME", "/dev/null")
        .env_remove("DEBUGINFOD_URLS")
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut output = BufReader::new(server.stdout.take().expect("piped"));
    let mut line = String::new();
    output.read_line(&mut line).expect("the address");
    let url = line.trim().strip_prefix("http://").expect("a URL");
    let (address, token) = url.split_once('/').expect("a path");
    assert!(token.len() > 32 && token.ends_with('/'), "{url}");
    (server, address.to_owned(), format!("/{token}"))
}

/// Returns the answer to a request with this host name.
fn request_as(address: &str, path: &str, host: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(
        stream,
        "GET {path} HTTP/1.1\r\n{host}Connection: close\r\n\r\n"
    )
    .expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer
}

/// Checks requests from a foreign page whose host name resolves to this server (DNS rebinding), and
/// clients that do not read, which must not delay other clients.
#[test]
fn the_server_answers_its_own_readers_only_and_all_of_them() {
    let folder = Folder::new("view-readers");
    let file = record(&folder);
    let (mut server, address, path) = serve(&file, "0");
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    let port = address.rsplit(':').next().expect("a port");
    for host in [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:1",
        "",
    ] {
        let host = format!("Host: {host}\r\n");
        let answer = request_as(&address, &path, &host);
        assert!(answer.starts_with("HTTP/1.1 421"), "{host}: {answer:.200}");
    }
    let two = format!("Host: {address}\r\nHost: evil.example\r\n");
    assert!(request_as(&address, &path, &two).starts_with("HTTP/1.1 421"));
    for host in [&address, "localhost", &format!("localhost:{port}")] {
        let answer = request_as(&address, &path, &format!("Host: {host}\r\n"));
        assert!(answer.starts_with("HTTP/1.1 200"), "{host}: {answer:.200}");
    }
    // Some clients never read the answer, and some never send a request.
    let slow: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut stream = TcpStream::connect(&address).expect("it listens");
            write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").expect("it reads");
            stream
        })
        .collect();
    let idle = [(); 4].map(|()| TcpStream::connect(&address).expect("it listens"));
    // Checks that a reader gets its answer before the server drops an earlier, slow client. The
    // check is repeated, because on a slow machine the answer may take longer than the slow
    // client's timeout.
    let overtakes = || {
        let mut waiting = TcpStream::connect(&address).expect("it listens");
        let answer = request(&address, &format!("GET {path} HTTP/1.1"));
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer:.200}");
        waiting.set_nonblocking(true).expect("a socket");
        let end = waiting.read(&mut [0]);
        end.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    assert!((0..10).any(|_| overtakes()), "readers wait for each other");
    drop((slow, idle));
    server.kill().expect("it runs");
    server.wait().expect("it ends");
}

#[test]
fn the_page_is_served_until_the_end_is_asked_for() {
    let folder = Folder::new("view-served");
    let file = record(&folder);
    let (mut server, address, path) = serve(&file, "127.0.0.1:0");
    let page = request(&address, &format!("GET {path} HTTP/1.1"));
    assert!(page.starts_with("HTTP/1.1 200"), "{page:.300}");
    assert!(
        page.contains("Content-Type: text/html; charset=utf-8"),
        "{page:.300}"
    );
    assert!(sum(&data(&page)["sites.live.bytes"]) > 4_999);
    // Another user of this machine can connect, but does not know the token.
    for line in [
        "GET / HTTP/1.1",
        "GET /etc/passwd HTTP/1.1",
        "DELETE / HTTP/1.1",
    ] {
        let answer = request(&address, line);
        assert!(answer.starts_with("HTTP/1.1 403"), "{answer:.200}");
        assert!(answer.ends_with("\r\n\r\n"), "{answer:.500}");
    }
    let status = |line: &str| request(&address, line)[..12].to_owned();
    assert_eq!(
        status(&format!("GET {path}etc/passwd HTTP/1.1")),
        "HTTP/1.1 404"
    );
    assert_eq!(status(&format!("DELETE {path} HTTP/1.1")), "HTTP/1.1 405");
    // SAFETY: plain integers; the child has not been waited for.
    unsafe { libc::kill(server.id() as i32, libc::SIGINT) };
    assert!(server.wait().expect("it ends").success());

    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let (code, _, errors) = run(&["view", &file, "--serve", &address]);
    assert_eq!(code, 2);
    assert!(
        errors.contains("cannot serve at") && errors.lines().count() == 1,
        "{errors}"
    );
}

#[test]
fn what_is_no_recording_is_refused() {
    let folder = Folder::new("view-refused");
    let file = folder.path("run.mhk");
    std::fs::write(&file, "no recording").expect("a file");
    for arguments in [
        &["view", &file][..],
        &["view", "/nonexistent.mhk"],
        &["view", &file, "--serve", "nowhere"],
    ] {
        let (code, _, errors) = run(arguments);
        assert_eq!(
            (code, errors.lines().count()),
            (2, 1),
            "{arguments:?}: {errors}"
        );
    }
}
