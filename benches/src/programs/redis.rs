//! Loads redis-server with redis-benchmark.

use super::{Program, find};
use crate::{Figure, Round, Standing, Subject, Tool, processors::Placement};
use memhook_tests::{
    Target,
    programs::{Client, Folder, server},
};
use std::{path::PathBuf, process::Command};

pub(super) const PROGRAM: Program = Program {
    works: &[
        "redis SET, pipeline 1",
        "redis GET, pipeline 1",
        "redis LPUSH, pipeline 1",
        "redis SET, pipeline 16",
        "redis GET, pipeline 16",
        "redis LPUSH, pipeline 16",
    ],
    cycles: 16,
    stands: true,
    start,
};

/// Requests of each kind in a round, by pipeline depth.
const ROUNDS: [(u32, u32); 2] = [(1, 15_000), (16, 200_000)];
const KINDS: [&str; 3] = ["set", "get", "lpush"];

struct Redis {
    target: Target,
    load: PathBuf,
    socket: String,
    client: Client,
    rounds: [(u32, u32); 2],
    _folder: Folder,
}

fn start(place: &Placement) -> Result<Box<dyn Subject>, String> {
    let program = find("redis-server", "redis-server")?;
    let load = find("redis-benchmark", "redis-tools")?;
    let folder = Folder::new("bench-redis");
    let socket = folder.path("socket");
    let mut command = place.command(&program);
    command.args(["--port", "0", "--save", "", "--appendonly", "no"]);
    command.args(["--loglevel", "warning", "--unixsocket", &socket]);
    let target = server(&mut command, &socket);
    Ok(Box::new(Redis {
        client: Client::connect(&socket),
        rounds: ROUNDS.map(|(pipeline, requests)| (pipeline, place.part(requests))),
        target,
        load,
        socket,
        _folder: folder,
    }))
}

impl Redis {
    fn requests(&mut self) -> Result<Vec<Figure>, String> {
        // Every round begins with an empty database.
        self.client.redis("FLUSHALL");
        let pid = self.target.pid();
        let mut figures = Vec::new();
        for (pipeline, requests) in self.rounds {
            for kind in KINDS {
                let mut rate = 0.0;
                let figure = Figure::of(pid, || {
                    rate = self.rate(kind, pipeline, requests)?;
                    Ok(f64::from(requests))
                })?;
                // redis-benchmark's rate excludes its startup.
                let ns = 1e9 / rate;
                figures.push(Figure { ns, ..figure });
            }
        }
        Ok(figures)
    }

    /// Returns requests per second, as measured by redis-benchmark.
    fn rate(&self, kind: &str, pipeline: u32, requests: u32) -> Result<f64, String> {
        let output = Command::new(&self.load)
            .args(["-s", &self.socket, "-c", "20", "--csv", "-r", "100000"])
            .args(["-t", kind, "-P", &pipeline.to_string()])
            .args(["-n", &requests.to_string()])
            .output()
            .map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        // "SET","123456.79",...
        let rates = |line: &str| line.split('"').nth(3)?.parse().ok();
        let rate = text.lines().find_map(rates);
        rate.ok_or_else(|| format!("redis-benchmark says {text}"))
    }
}

impl Subject for Redis {
    fn round(&mut self, tool: Option<&dyn Tool>) -> Result<Round, String> {
        let pid = self.target.pid();
        let measure = || self.requests();
        Standing { pid, measure }.round(tool)
    }
}
