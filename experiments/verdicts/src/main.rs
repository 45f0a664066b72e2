//! Accuracy of `memhook-rs advise` on programs with a known truth.
//!
//! The rules of advice are in `crates/advice`. Situations that are not held back help to find and correct wrong
//! verdicts. Situations that are held back measure the accuracy.

mod chance;
mod situation;
mod source;
mod trial;

use situation::{CLASSES, Situation};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use trial::{Said, trial};

const USAGE: &str = "usage: memhook-verdicts MEMHOOK-RS [seed=N] [count=N] [at-once=N] [time=60s] [part=tuned|held|all] [only=NUMBER]";

struct Wanted {
    memhook: String,
    seed: u32,
    count: usize,
    at_once: usize,
    time: String,
    part: String,
    only: Option<usize>,
}

fn wanted() -> Option<Wanted> {
    let mut arguments = std::env::args().skip(1);
    let mut wanted = Wanted {
        memhook: arguments.next()?,
        seed: 1,
        count: 36,
        at_once: 3,
        time: "60s".into(),
        part: "all".into(),
        only: None,
    };
    for argument in arguments {
        let (name, value) = argument.split_once('=')?;
        match name {
            "seed" => wanted.seed = value.parse().ok()?,
            "count" => wanted.count = value.parse().ok()?,
            "at-once" => wanted.at_once = value.parse().ok()?,
            "time" => wanted.time = value.into(),
            "part" => wanted.part = value.into(),
            "only" => wanted.only = Some(value.parse().ok()?),
            _ => return None,
        }
    }
    Some(wanted)
}

fn main() -> std::process::ExitCode {
    let Some(wanted) = wanted() else {
        eprintln!("{USAGE}");
        return std::process::ExitCode::from(2);
    };
    let folder = std::env::temp_dir().join(format!("memhook-verdicts-{}", std::process::id()));
    if let Err(error) = std::fs::create_dir_all(&folder) {
        eprintln!("cannot make {}: {error}", folder.display());
        return std::process::ExitCode::from(2);
    }
    let situations: Vec<Situation> = situation::all(wanted.seed)
        .into_iter()
        .filter(|one| match wanted.part.as_str() {
            "held" => one.is_held,
            "tuned" => !one.is_held,
            _ => true,
        })
        .filter(|one| wanted.only.is_none_or(|only| one.number == only))
        .take(wanted.count)
        .collect();
    let results = all_of(&situations, &wanted, &folder);
    print_matrix(&results);
    println!("programs and answers: {}", folder.display());
    std::process::ExitCode::SUCCESS
}

fn all_of<'a>(
    situations: &'a [Situation],
    wanted: &Wanted,
    folder: &Path,
) -> Vec<(&'a Situation, Said)> {
    let folder: PathBuf = folder.into();
    let next = Mutex::new(situations.iter());
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..wanted.at_once.max(1) {
            scope.spawn(|| {
                loop {
                    let Some(of) = next.lock().expect("a lock").next() else {
                        return;
                    };
                    let said = trial(of, &wanted.memhook, &wanted.time, &folder);
                    let verdict = match (said.class == of.disease.class(), said.is_site_right) {
                        (true, true) => "right",
                        (true, false) => "SITE ",
                        _ => "WRONG",
                    };
                    println!(
                        "{verdict} {:>3} {:?} {:?} {:?} {}{}: {} ({})",
                        of.number,
                        of.disease,
                        of.language,
                        of.allocator,
                        of.moment,
                        if of.is_held { " held" } else { "" },
                        said.class,
                        said.answer.lines().next().unwrap_or_default(),
                    );
                    if let Some((predicted, came)) = said.tried {
                        println!(
                            "      {:>3} tried: {predicted} predicted, {came} came back",
                            of.number
                        );
                    }
                    results.lock().expect("a lock").push((of, said));
                }
            });
        }
    });
    results.into_inner().expect("no panic")
}

fn print_matrix(results: &[(&Situation, Said)]) {
    println!(
        "\n{:>14} {}",
        "truth \\ said",
        CLASSES.map(|class| format!("{class:>13}")).concat()
    );
    for truth in CLASSES {
        let of_truth = results.iter().filter(|(of, _)| of.disease.class() == truth);
        let of_truth: Vec<_> = of_truth.collect();
        if of_truth.is_empty() {
            continue;
        }
        let cells = CLASSES.map(|class| {
            let count = of_truth
                .iter()
                .filter(|(_, said)| said.class == class)
                .count();
            format!(
                "{:>13}",
                if count == 0 {
                    ".".into()
                } else {
                    count.to_string()
                }
            )
        });
        println!("{truth:>14} {}", cells.concat());
    }
    for certainty in ["exact", "tested", "estimated", ""] {
        let with = results
            .iter()
            .filter(|(_, said)| said.certainty == certainty && said.class != "failed");
        let (all, right) = with.fold((0, 0), |(all, right), (of, said)| {
            (
                all + 1,
                right + usize::from(said.class == of.disease.class()),
            )
        });
        let name = if certainty.is_empty() {
            "without a finding"
        } else {
            certainty
        };
        println!("{name}: class right {right} of {all}");
    }
    let tried: Vec<(f64, f64)> = results.iter().filter_map(|(_, said)| said.tried).collect();
    let as_predicted = tried
        .iter()
        .filter(|(predicted, came)| (came / predicted - 1.0).abs() < 0.15);
    println!(
        "remedies tried {}, within 15 % of what was predicted {}",
        tried.len(),
        as_predicted.count()
    );
    for (name, is_held) in [("tuned", false), ("held", true)] {
        let part: Vec<_> = results
            .iter()
            .filter(|(of, _)| of.is_held == is_held)
            .collect();
        let right = |(of, said): &&&(&Situation, Said)| said.class == of.disease.class();
        let classes = part.iter().filter(right).count();
        let with_site: Vec<_> = part
            .iter()
            .filter(|(of, _)| of.disease.has_site())
            .collect();
        let sites = with_site
            .iter()
            .filter(|(of, said)| said.class == of.disease.class() && said.is_site_right)
            .count();
        let healthy: Vec<_> = part
            .iter()
            .filter(|(of, _)| of.disease.class() == "nothing")
            .collect();
        let accused = healthy
            .iter()
            .filter(|(_, said)| !matches!(said.class.as_str(), "nothing" | "unsure" | "failed"))
            .count();
        let falsely_certain = part
            .iter()
            .filter(|(of, said)| said.is_certain && said.class != of.disease.class())
            .count();
        println!(
            "{name}: class right {classes} of {}; class and site right {sites} of {}; healthy programs accused {accused} of {}; certain and wrong {falsely_certain}",
            part.len(),
            with_site.len(),
            healthy.len(),
        );
    }
}
