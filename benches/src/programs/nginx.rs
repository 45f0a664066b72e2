//! Loads nginx, as one process, with requests for a small file over persistent connections.

use super::{Program, find, pump::Pump};
use crate::{Figure, Round, Standing, Subject, Tool, is_test, processors::Placement};
use memhook_tests::{
    Target,
    programs::{Folder, nginx_configuration, server},
};
use std::time::Duration;

pub(super) const PROGRAM: Program = Program {
    works: &["nginx GET"],
    cycles: 20,
    stands: true,
    start,
};

const REQUEST: &str = "GET /page.html HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n";

struct Nginx {
    target: Target,
    pump: Pump,
    answer_bytes: usize,
    _folder: Folder,
}

fn start(place: &Placement) -> Result<Box<dyn Subject>, String> {
    let program = find("nginx", "nginx-light")?;
    let folder = Folder::new("bench-nginx");
    let socket = folder.path("socket");
    let file = nginx_configuration(&folder, "keepalive_requests 1000000000;");
    let page = folder.path("page.html");
    std::fs::write(&page, "a small page ".repeat(50)).map_err(|e| e.to_string())?;
    let mut command = place.command(&program);
    command.args(["-c", &file]);
    let target = server(&mut command, &socket);
    let answer = Pump::connect(&socket, 1, 1)?.answer(REQUEST)?;
    if !answer.starts_with(b"HTTP/1.1 200") {
        return Err(format!("nginx: {}", String::from_utf8_lossy(&answer)));
    }
    Ok(Box::new(Nginx {
        target,
        pump: Pump::connect(&socket, 16, 1)?,
        answer_bytes: answer.len(),
        _folder: folder,
    }))
}

impl Subject for Nginx {
    fn round(&mut self, tool: Option<&dyn Tool>) -> Result<Round, String> {
        let pid = self.target.pid();
        let time = Duration::from_millis(if is_test() { 20 } else { 250 });
        let measure = || {
            let request = |_, text: &mut Vec<u8>| text.extend(REQUEST.as_bytes());
            let run = || self.pump.run(time, self.answer_bytes, request);
            Ok(vec![Figure::of(pid, run)?])
        };
        Standing { pid, measure }.round(tool)
    }
}
