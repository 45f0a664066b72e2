//! Debug files from a server.

use crate::program::{Program, check_frames};
use memhook_symbols::{Debuginfod, SearchPath, Source, SymbolCache, TimeLimits};
use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

/// A server that answers each request as the test wants, and records the requests.
struct Server {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(answer: impl Fn(TcpStream) + Send + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let note = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
                let request = lines.next().unwrap_or_default();
                // Reads the request up to the empty line, because closing with unread bytes would
                // reset the connection.
                lines.take_while(|line| !line.is_empty()).for_each(drop);
                let path = request.split(' ').nth(1).unwrap_or_default();
                note.lock().unwrap().push(path.to_owned());
                answer(stream);
            }
        });
        Server { url, asked }
    }

    /// Returns a server that always sends this answer.
    fn giving(status: &'static str, body: Vec<u8>) -> Server {
        Server::start(move |mut stream| {
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(head.as_bytes());
            let _ = stream.write_all(&body);
        })
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// Returns a program without debug information, and its debug file's bytes.
fn stripped() -> (Program, Vec<u8>) {
    let program = Program::build(&["-Wl,--build-id=sha1"]);
    let debug = program.split("somewhere/else");
    let bytes = std::fs::read(debug).unwrap();
    (program, bytes)
}

/// Time limits for a busy machine. The test of a timeout sets other limits.
const PATIENT: TimeLimits = TimeLimits {
    silence: Duration::from_secs(60),
    total: Duration::from_secs(60),
};

fn places(program: &Program, urls: &str, limits: TimeLimits) -> SearchPath {
    let cache = SymbolCache::at(program.directory.join("cache"));
    SearchPath {
        debuginfod: Some(Debuginfod::new(urls, &cache, limits).unwrap()),
        ..SearchPath::default()
    }
}

fn downloaded(program: &Program) -> Vec<PathBuf> {
    let directory = program.directory.join("cache/debuginfod");
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_debug_file_is_downloaded_once() {
    let (program, bytes) = stripped();
    let server = Server::giving("200 OK", bytes);
    // The list has a trailing slash and tokens for other clients.
    let urls = format!("ima:enforcing {}/ ", server.url);
    for _ in 0..2 {
        let places = places(&program, &urls, PATIENT);
        let (frames, source, problems) = program.look_in(program.module(), places);
        check_frames(&frames);
        assert_eq!(source, Source::DebugInfo);
        assert!(problems.is_empty(), "{problems:?}");
    }
    let id = program.build_id.clone().unwrap();
    let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(server.asked(), [format!("/buildid/{id}/debuginfo")]);
    // The module's own file is not needed.
    let mut module = program.module();
    module.candidates.clear();
    let (frames, ..) = program.look_in(module, places(&program, &server.url, PATIENT));
    check_frames(&frames);
}

#[test]
fn another_build_is_refused() {
    let (program, _) = stripped();
    let other = Program::build(&["-Wl,--build-id=sha1", "-DOTHER", "-O0"]);
    let server = Server::giving("200 OK", std::fs::read(&other.path).unwrap());
    let places = places(&program, &server.url, PATIENT);
    let (frames, source, problems) = program.look_in(program.module(), places);
    assert_eq!((frames, source), (vec![], Source::Nothing));
    assert!(problems[0].starts_with(&server.url), "{problems:?}");
    assert!(
        problems[0].contains("is from another build"),
        "{problems:?}"
    );
    assert_eq!(downloaded(&program), Vec::<PathBuf>::new());
}

#[test]
fn the_next_server_is_asked() {
    let (program, bytes) = stripped();
    let has_none = Server::giving("404 Not Found", Vec::new());
    let broken = Server::giving("503 Service Unavailable", Vec::new());
    let right = Server::giving("200 OK", bytes);
    let urls = [&has_none.url, &broken.url, &right.url].map(String::as_str);
    let places = places(&program, &urls.join(" "), PATIENT);
    let (frames, _, problems) = program.look_in(program.module(), places);
    check_frames(&frames);
    let [problem] = &problems[..] else {
        panic!("{problems:?}");
    };
    assert!(problem.starts_with(&broken.url), "{problem}");
    assert!(problem.contains("503"), "{problem}");
}

#[test]
fn what_no_server_has_is_not_asked_for_again() {
    let (program, _) = stripped();
    let server = Server::giving("404 Not Found", Vec::new());
    for _ in 0..2 {
        let places = places(&program, &server.url, PATIENT);
        let (frames, _, problems) = program.look_in(program.module(), places);
        assert_eq!(frames, []);
        assert!(problems.is_empty(), "{problems:?}");
    }
    assert_eq!(server.asked().len(), 1);
}

/// Each failure gives one note, and other sources provide the names.
#[test]
fn a_server_that_fails_is_told_once() {
    let (_held, hold) = mpsc::channel::<()>();
    let hold = Mutex::new(hold);
    let silent = Server::start(move |stream| {
        // The server does not answer until the test ends.
        let _ = hold.lock().unwrap().recv();
        drop(stream);
    });
    let cut = Server::start(|mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf");
    });
    let talking = Server::start(|mut stream| {
        let _ = stream.write_all(b"what do you want?\r\n\r\n");
    });
    // This port is never assigned automatically, unlike the ports of all other tests.
    let gone = "http://127.0.0.1:1".to_owned();
    let nameless = "http://no-such-host.invalid".to_owned();
    for url in [&silent.url, &cut.url, &talking.url, &gone, &nameless] {
        let (program, _) = stripped();
        let hasty = TimeLimits {
            silence: Duration::from_millis(300),
            total: Duration::from_secs(60),
        };
        let limits = if *url == silent.url { hasty } else { PATIENT };
        let places = places(&program, url, limits);
        let (_, source, problems) = program.look_in(program.module(), places.clone());
        assert_eq!(source, Source::Nothing);
        assert_eq!(problems.len(), 1, "{url}: {problems:?}");
        assert!(problems[0].starts_with(url.as_str()), "{problems:?}");
        assert_eq!(downloaded(&program), Vec::<PathBuf>::new(), "{url}");
        // Another module uses these servers.
        let (_, _, problems) = program.look_in(program.module(), places);
        assert!(problems.is_empty(), "{problems:?}");
    }
}

#[test]
fn without_servers_nothing_is_asked() {
    let cache = SymbolCache::at("/nonexistent".into());
    assert!(Debuginfod::new("", &cache, PATIENT).is_none());
    assert!(Debuginfod::new(" ima:enforcing ftp://x ", &cache, PATIENT).is_none());
}
