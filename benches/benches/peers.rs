//! Other tools beside memhook-rs, on the same programs in one run. Each round is a new process.
//!
//! `cargo xtask peers`, or `cargo bench -p memhook-benches --bench peers`

use memhook_benches::programs::{REDIS, SQLITE};
use memhook_benches::{
    Alternated, Figures, Measured, Peer, Placement, Round, Standing, Subject, Tool, alternate,
    bind_to, build, is_test, peers, placement,
};
use memhook_tests::programs::Folder;

/// A program that is started anew for each round.
struct Work {
    names: Vec<&'static str>,
    start: Box<dyn Fn(&Placement) -> Result<Box<dyn Subject>, String>>,
    /// Also run under tools that slow it down by two orders of magnitude.
    is_small: bool,
}

/// A program of ours, which measures itself.
struct Own(Measured);

impl Subject for Own {
    fn round(&mut self, tool: Option<&dyn Tool>) -> Result<Round, String> {
        let milliseconds = if is_test() { 10.0 } else { 200.0 };
        Standing {
            pid: self.0.pid(),
            measure: || self.0.round(milliseconds),
        }
        .round(tool)
    }
}

fn own(name: &'static str, program: &'static str, args: &'static [&'static str]) -> Work {
    Work {
        names: vec![name],
        start: Box::new(move |place| {
            let mut command = place.command(&build(program, &[]));
            Ok(Box::new(Own(Measured::run(command.args(args)))))
        }),
        is_small: true,
    }
}

fn works() -> Vec<Work> {
    let mut works = vec![
        own("pair, depth 10", "pair", &["10", "1"]),
        own("many stacks", "many", &["1"]),
        own("mixed C++", "mixed", &[]),
    ];
    for program in [REDIS, SQLITE] {
        works.push(Work {
            names: program.works.to_vec(),
            start: Box::new(program.start),
            is_small: false,
        });
    }
    works
}

struct Fresh<'a> {
    work: &'a Work,
    peer: &'a Peer,
    place: Placement,
}

impl Subject for Fresh<'_> {
    fn round(&mut self, tool: Option<&dyn Tool>) -> Result<Round, String> {
        self.place.wrapper = match (self.peer, tool) {
            (Peer::Attached(_), _) => Vec::new(),
            (Peer::Wrapped { without, .. }, None) => without.clone(),
            (Peer::Wrapped { with, .. }, Some(_)) => with.clone()?,
        };
        let mut subject = (self.work.start)(&self.place)?;
        match self.peer {
            Peer::Attached(_) => subject.round(tool),
            Peer::Wrapped { .. } => subject.round(None),
        }
    }
}

/// Stands for a tool that has started the target.
struct Started<'a>(&'a str);

impl Tool for Started<'_> {
    fn name(&self) -> &str {
        self.0
    }

    fn start(&self, _: u32) -> Result<Box<dyn memhook_benches::Running>, String> {
        Err(format!("{} cannot attach", self.0))
    }
}

fn main() {
    let place = placement();
    bind_to(&place.rest);
    let mut figures = Figures::new("peers");
    let folder = Folder::new("peers");
    let peers = peers(&folder);
    for work in works() {
        for peer in &peers {
            if matches!(peer, Peer::Wrapped { is_slow: true, .. }) && !work.is_small {
                continue;
            }
            figures.add(&work.names, &[peer.name()], || {
                let started = Started(peer.name());
                let tool: &dyn Tool = match peer {
                    Peer::Attached(tool) => &**tool,
                    Peer::Wrapped { with: Ok(_), .. } => &started,
                    Peer::Wrapped { with: Err(why), .. } => {
                        return Alternated::impossible(&[peer.name()], why);
                    }
                };
                let place = placement();
                let mut subject = Fresh {
                    work: &work,
                    peer,
                    place,
                };
                alternate(&mut subject, &[tool], Figures::cycles())
            });
        }
    }
    figures.finish();
}
