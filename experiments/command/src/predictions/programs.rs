//! Programs whose memory may depend on allocator settings. Each program does the same work in every
//! run.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A program, and its driver.
pub struct Program {
    /// Name on the command line.
    pub name: &'static str,
    /// Returns the work. Creates its files in this folder.
    pub work: fn(&Path) -> Result<Work, String>,
    /// Driver that sends work to the program and ends it. `None` if the program needs no driver.
    pub driver: Option<fn() -> Result<(), String>>,
}

/// Command line and input of a program.
#[derive(Default)]
pub struct Work {
    /// Command prefix that runs the program as another user. May be empty.
    before: Vec<String>,
    /// Program and its arguments.
    words: Vec<String>,
    /// Environment variables.
    variables: Vec<(&'static str, &'static str)>,
    /// Standard input. `None` for empty input.
    input: Option<String>,
}

impl Work {
    fn of(words: Vec<String>) -> Work {
        Work {
            words,
            ..Work::default()
        }
    }

    /// Returns the program's command line with this prefix.
    pub fn command(&self, by: &[&str]) -> Command {
        let by = by.iter().map(|word| (*word).to_owned());
        let mut words = self
            .before
            .iter()
            .cloned()
            .chain(by)
            .chain(self.words.iter().cloned());
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).envs(self.variables.iter().copied());
        command
    }

    /// Opens the program's standard input.
    pub fn input(&self) -> Result<Stdio, String> {
        let Some(path) = &self.input else {
            return Ok(Stdio::null());
        };
        let file = std::fs::File::open(path).map_err(|error| format!("{path}: {error}"))?;
        Ok(file.into())
    }
}

pub const ALL: [Program; 10] = [
    Program {
        name: "redis",
        work: |_| {
            Ok(Work::of(words(
                "redis-server --port 7391 --save  --appendonly no",
            )))
        },
        driver: Some(drive_redis),
    },
    Program {
        name: "memcached",
        work: |_| Ok(Work::of(words("memcached -A -u root -p 7392 -m 400 -t 2"))),
        driver: Some(drive_memcached),
    },
    Program {
        name: "sqlite3",
        work: |folder| {
            Ok(Work::of(vec![
                "sqlite3".into(),
                ":memory:".into(),
                read_script(folder, "work.sql", SQL)?,
            ]))
        },
        driver: None,
    },
    Program {
        name: "python3",
        work: |folder| {
            let script = written(folder, "service.py", PYTHON)?;
            Ok(Work {
                variables: vec![("PYTHONMALLOC", "malloc")],
                ..Work::of(vec!["/usr/bin/python3".into(), script])
            })
        },
        driver: None,
    },
    Program {
        name: "perl",
        work: |folder| {
            Ok(Work::of(vec![
                "perl".into(),
                written(folder, "work.pl", PERL)?,
            ]))
        },
        driver: None,
    },
    Program {
        name: "pins",
        work: |_| {
            let program = memhook_tests::build_target("fragmented", &["-O1"]);
            let program = program.display().to_string();
            Ok(Work::of(vec![program, "4".into(), "150000".into()]))
        },
        driver: None,
    },
    Program {
        name: "arenas",
        work: |folder| {
            let source = written(folder, "arenas.cc", ARENAS)?;
            let program = folder.join("arenas").display().to_string();
            compile(&["-O2", "-pthread", "-o", &program, &source])?;
            Ok(Work::of(vec![program]))
        },
        driver: None,
    },
    Program {
        name: "cc1plus",
        work: |folder| {
            let source = written(folder, "regexes.cc", REGEXES)?;
            let text = folder.join("regexes.ii").display().to_string();
            compile(&["-E", "-o", &text, &source])?;
            let compiler = Command::new("g++").arg("-print-prog-name=cc1plus").output();
            let compiler = compiler.map_err(|error| format!("g++: {error}"))?;
            let compiler = String::from_utf8_lossy(&compiler.stdout).trim().to_owned();
            let words = [
                &compiler,
                "-quiet",
                "-O2",
                "-fpreprocessed",
                &text,
                "-o",
                "/dev/null",
            ];
            Ok(Work::of(words.map(str::to_owned).into()))
        },
        driver: None,
    },
    Program {
        name: "postgres",
        work: postgres,
        driver: None,
    },
    Program {
        name: "git",
        work: |_| {
            let root = crate::root();
            let root = root.display();
            let line = format!("git -C {root} rev-list --objects --all --quiet");
            Ok(Work::of(words(&line)))
        },
        driver: None,
    },
];

fn words(line: &str) -> Vec<String> {
    // Two consecutive spaces yield an empty word.
    line.split(' ').map(str::to_owned).collect()
}

fn written(folder: &Path, name: &str, text: &str) -> Result<String, String> {
    let path: PathBuf = folder.join(name);
    std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path.display().to_string())
}

/// Returns the command that makes sqlite3 read a script.
fn read_script(folder: &Path, name: &str, text: &str) -> Result<String, String> {
    Ok(format!(".read {}", written(folder, name, text)?))
}

fn compile(arguments: &[&str]) -> Result<(), String> {
    let done = Command::new("g++").args(arguments).status();
    match done {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("g++: {status}")),
        Err(error) => Err(format!("g++: {error}")),
    }
}

/// Rows of varying sizes, most of which are deleted again.
const SQL: &str = "
create table t(a integer primary key, b blob);
with recursive n(i) as (select 1 union all select i+1 from n where i < 200000)
  insert into t select i, randomblob(100 + i % 900) from n;
delete from t where a % 10 != 0;
with recursive n(i) as (select 1 union all select i+1 from n where i < 100000)
  insert into t(b) select randomblob(1000 + i % 500) from n;
create index k on t(b);
delete from t where a % 3 = 0;
with recursive n(i) as (select 1 union all select i+1 from n where i < 3000000)
  select max(i) from n;
drop table t;
with recursive n(i) as (select 1 union all select i+1 from n where i < 3000000)
  select max(i) from n;
";

/// Short-lived sessions of several sizes, and a cache that keeps some of their data.
const PYTHON: &str = "
import random, time
random.seed(1)
kept = []
for round in range(6):
    sessions = {}
    for i in range(60000):
        sessions[i] = ['x' * random.randint(10, 400), {'id': i, 'name': str(i) * 3}]
        if i % 50 == 0:
            kept.append('k' * random.randint(40, 300))
    time.sleep(.2)
    del sessions
    time.sleep(.3)
";

const PERL: &str = "
use strict;
srand(1);
my %kept;
for my $round (1 .. 5) {
  my %all;
  for my $i (1 .. 120000) {
    $all{$i} = 'x' x (20 + int(rand(300)));
    $kept{\"$round $i\"} = 'k' x (30 + int(rand(100))) if $i % 40 == 0;
  }
  select(undef, undef, undef, .2);
  %all = ();
  select(undef, undef, undef, .3);
}
";

/// Threads that run one after another, each with its own arena.
const ARENAS: &str = r#"
#include <malloc.h>
#include <pthread.h>
#include <unistd.h>
#include <cstdlib>
#include <cstring>
static void* work(void*) {
  static thread_local void* kept[64];
  for (int round = 0; round < 6; round++) {
    constexpr int many = 2000;
    void* blocks[many];
    for (int i = 0; i < many; i++) {
      const size_t size = 200 + (i * 37 + round * 911) % 1800;
      blocks[i] = malloc(size);
      memset(blocks[i], 1, size);
    }
    if (!kept[round]) kept[round] = malloc(100);
    for (void* block : blocks) free(block);
    usleep(300'000);
  }
  return nullptr;
}
int main() {
  pthread_t threads[16];
  for (pthread_t& thread : threads) {
    pthread_create(&thread, nullptr, work, nullptr);
    usleep(100'000);
  }
  for (pthread_t thread : threads) pthread_join(thread, nullptr);
}
"#;

const REGEXES: &str = r#"
#include <functional>
#include <iostream>
#include <map>
#include <regex>
#include <string>
#include <unordered_map>
#include <variant>
int main(int count, char** words) {
  std::map<std::string, std::variant<int, std::string>> found;
  std::unordered_map<int, std::function<void()>> calls;
  std::regex word("[a-z]+[0-9]*"), number("[0-9]+(\\.[0-9]+)?");
  for (int i = 1; i < count; i++) {
    std::smatch match;
    std::string text = words[i];
    if (std::regex_search(text, match, word)) found[match.str()] = i;
    if (std::regex_match(text, number)) found[text] = text;
    calls[i] = [text] { std::cout << text << '\n'; };
  }
  for (auto& [i, call] : calls) call();
}
"#;

/// Returns a single-user backend, which reads statements from standard input.
fn postgres(folder: &Path) -> Result<Work, String> {
    let bin = std::fs::read_dir("/usr/lib/postgresql")
        .ok()
        .and_then(|mut versions| versions.next()?.ok())
        .map(|version| version.path().join("bin"))
        .ok_or("PostgreSQL is not installed")?;
    // PostgreSQL refuses to run as root.
    let before = "setpriv --reuid=postgres --regid=postgres --clear-groups";
    let (bin, data) = (bin.display(), folder.join("data"));
    let data = data.display();
    let lines = [
        // The recording of the backend is also written there.
        format!("chmod 777 {}", folder.display()),
        format!("test -d {data} || {before} {bin}/initdb -A trust -D {data}"),
    ];
    for line in lines {
        let mut shell = Command::new("sh");
        let done = shell.args(["-c", &line]).stdout(Stdio::null()).status();
        if !done.is_ok_and(|status| status.success()) {
            return Err(format!("{line} failed"));
        }
    }
    Ok(Work {
        before: words(before),
        input: Some(written(folder, "work.pg", POSTGRES)?),
        ..Work::of(words(&format!(
            "{bin}/postgres --single -D {data} postgres"
        )))
    })
}

/// Statements, one per line.
const POSTGRES: &str = "\
set work_mem = '200MB'
drop table if exists t
create table t as select i, md5(i::text) as k from generate_series(1, 400000) i
select count(*) from (select k, count(*) from t group by k) x
select count(*) from t a join t b using (k)
select pg_sleep(.5)
select count(distinct k) from t
do $$ declare a text[]; begin for i in 1..20000 loop a := array_append(a, md5(i::text)); end loop; end $$
select pg_sleep(.5)
drop table t
";

/// Connects to a port, and retries until a server listens.
fn connect(port: u16) -> Result<std::net::TcpStream, String> {
    let begin = Instant::now();
    loop {
        match std::net::TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => return Ok(stream),
            Err(error) if begin.elapsed() > Duration::from_secs(20) => {
                return Err(format!("port {port}: {error}"));
            }
            Err(_) => sleep(Duration::from_millis(50)),
        }
    }
}

/// Sets keys with values of varying sizes, most of which are deleted again.
fn drive_redis() -> Result<(), String> {
    drop(connect(7391)?);
    let call = |words: &[&str]| {
        let done = Command::new("redis-cli")
            .args(["-p", "7391"])
            .args(words)
            .stdout(Stdio::null())
            .status();
        done.map_err(|error| format!("redis-cli: {error}"))
    };
    for round in 0..5 {
        let set = format!(
            "for i = 1, 60000 do redis.call('SET', '{round}:' .. i, string.rep('x', 30 + (i * 37 + {round} * 511) % 700)) end"
        );
        let delete = format!(
            "for i = 1, 60000 do if i % 10 ~= 0 then redis.call('DEL', '{round}:' .. i) end end"
        );
        for script in [set, delete] {
            call(&["EVAL", &script, "0"])?;
            sleep(Duration::from_millis(300));
        }
    }
    call(&["shutdown", "nosave"])?;
    Ok(())
}

fn drive_memcached() -> Result<(), String> {
    use std::io::{Read, Write};
    let mut stream = connect(7392)?;
    let said = |error: std::io::Error| format!("memcached: {error}");
    for round in 0..4 {
        for i in 0..20_000 {
            let bytes = 50 + (i * 37 + round * 701) % 3000;
            let value = "x".repeat(bytes);
            let key = i * 4 + round;
            write!(stream, "set {key} 0 0 {bytes} noreply\r\n{value}\r\n").map_err(said)?;
        }
        sleep(Duration::from_millis(300));
    }
    write!(stream, "shutdown\r\nversion\r\n").map_err(said)?;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    Ok(())
}
