//! Compares memhook-rs with other tools on the same programs in one run. Each round starts a new process.
//!
//! `cargo measure peers`

use memhook_measurements::programs::{Program, REDIS, SQLITE};
use memhook_measurements::{
    Alternated, Figures, Measured, Placement, Round, Standing, Subject, Tool, Way, alternate,
    bind_to, build, is_test, peers, placement,
};
use memhook_tests::programs::Folder;

/// Workload whose program is started again for each round.
struct Work {
    names: Vec<&'static str>,
    /// Fraction of a round's usual work.
    share: f64,
    start: Box<dyn Fn(&Placement) -> Result<Box<dyn Subject>, String>>,
    /// True if the program also runs under tools that slow it down by two orders of magnitude.
    is_small: bool,
}

/// A program of this repository, which measures itself.
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
        share: 1.0,
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
    let mut program = |program: Program, names: &[&'static str], share| {
        works.push(Work {
            names: names.to_vec(),
            share,
            start: Box::new(program.start),
            is_small: false,
        });
    };
    program(REDIS, REDIS.works, 0.25);
    program(SQLITE, &["sqlite3, 100,000 inserts"], 0.2);
    works
}

struct Fresh<'a> {
    work: &'a Work,
    way: &'a Way,
    place: Placement,
}

impl Subject for Fresh<'_> {
    fn round(&mut self, tool: Option<&dyn Tool>) -> Result<Round, String> {
        self.place.wrapper = match (self.way, tool) {
            (Way::Attached(_), _) => Vec::new(),
            (Way::Wrapped { without, .. }, None) => without.clone(),
            (Way::Wrapped { with, .. }, Some(_)) => with.clone(),
        };
        let mut subject = (self.work.start)(&self.place)?;
        match self.way {
            Way::Attached(_) => subject.round(tool),
            Way::Wrapped { .. } => subject.round(None),
        }
    }
}

/// Placeholder for a tool that has started the target.
struct Started<'a>(&'a str);

impl Tool for Started<'_> {
    fn name(&self) -> &str {
        self.0
    }

    fn start(&self, _: u32) -> Result<Box<dyn memhook_measurements::Running>, String> {
        Err(format!("{} cannot attach", self.0))
    }
}

fn main() {
    let mut figures = Figures::new("peers");
    let place = placement();
    bind_to(&place.rest);
    let folder = Folder::new("peers");
    let peers = peers(&folder);
    for peer in &peers {
        if let Err(why) = &peer.way {
            println!("missing: {}: {why}", peer.name);
        }
    }
    for work in works() {
        for peer in &peers {
            if peer.is_slow && !work.is_small {
                continue;
            }
            figures.add(&work.names, &[peer.name], || {
                let started = Started(peer.name);
                let (way, tool): (&Way, &dyn Tool) = match &peer.way {
                    Ok(way @ Way::Attached(tool)) => (way, &**tool),
                    Ok(way @ Way::Wrapped { .. }) => (way, &started),
                    Err(why) => return Alternated::impossible(&[peer.name], why),
                };
                let mut place = placement();
                place.share = work.share;
                let mut subject = Fresh {
                    work: &work,
                    way,
                    place,
                };
                alternate(&mut subject, &[tool], Figures::cycles())
            });
        }
    }
    figures.compare("pair, depth 10", "memhook-rs");
    figures.finish();
}
