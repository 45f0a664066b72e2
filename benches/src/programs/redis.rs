//! redis-server under redis-benchmark.

use super::{Program, find};
use crate::{Round, Standing, Subject, Tool, is_test, processors::Placement};
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
    start,
};

/// Requests of each kind in a round, by pipeline depth.
const ROUNDS: [(u32, u32); 2] = [(1, 25_000), (16, 300_000)];

struct Redis {
    target: Target,
    load: PathBuf,
    socket: String,
    client: Client,
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
        target,
        load,
        socket,
        _folder: folder,
    }))
}

impl Redis {
    fn requests(&mut self) -> Result<Vec<f64>, String> {
        // Every round begins with an empty database.
        self.client.redis("FLUSHALL");
        let mut figures = Vec::new();
        for (pipeline, requests) in ROUNDS {
            let requests = if is_test() { requests / 50 } else { requests };
            let output = Command::new(&self.load)
                .args(["-s", &self.socket, "-c", "20", "--csv", "-r", "100000"])
                .args(["-t", "set,get,lpush", "-P", &pipeline.to_string()])
                .args(["-n", &requests.to_string()])
                .output()
                .map_err(|e| e.to_string())?;
            let text = String::from_utf8_lossy(&output.stdout);
            // "SET","123456.79",...
            let rates: Vec<f64> = text
                .lines()
                .filter_map(|line| line.split('"').nth(3)?.parse().ok())
                .collect();
            if rates.len() != 3 {
                return Err(format!("redis-benchmark says {text}"));
            }
            figures.extend(rates.iter().map(|rate| 1e9 / rate));
        }
        Ok(figures)
    }
}

impl Subject for Redis {
    fn round(&mut self, tool: Option<&dyn Tool>) -> Result<Round, String> {
        let pid = self.target.pid();
        let measure = || self.requests();
        Standing { pid, measure }.round(tool)
    }
}
