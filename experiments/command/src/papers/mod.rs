//! `cargo experiment papers`: repeats the experiments of the papers that this project builds on. `docs/papers.md` shows
//! the figures of the papers next to ours.

mod catalogue;
mod held;
mod kal;
mod memcov;
mod memoro;
mod needs;
mod scanner;
mod sheet;
mod slides;
mod spawned;
mod thesis;

use catalogue::{EXPERIMENTS, Experiment, Paper};
use memhook_measurements::{bind_to, placement};
use sheet::Sheets;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    /// Papers (thesis, slides, kal, memcov, memoro) or single experiments; all by default
    parts: Vec<String>,
    /// List the experiments with their tables and figures, and the minutes that they take
    #[arg(long)]
    list: bool,
}

/// Result of an experiment.
enum End {
    Done,
    /// A requirement is missing; nothing was started.
    NotRun(String),
    Failed(String),
}

pub fn run(args: &Args) -> ExitCode {
    let chosen = match chosen(&args.parts) {
        Ok(chosen) => chosen,
        Err(unknown) => {
            eprintln!("papers: unknown paper or experiment {unknown:?}; --list shows all");
            return ExitCode::from(2);
        }
    };
    if args.list {
        print!("{}", list(&chosen));
        return ExitCode::SUCCESS;
    }
    let folder = output_folder();
    if let Err(error) = std::fs::create_dir_all(&folder) {
        eprintln!("papers: {}: {error}", folder.display());
        return ExitCode::from(2);
    }
    memhook_measurements::guard();
    // The binary is built before anything is timed.
    memhook_tests::binary();
    bind_to(&placement().rest);
    let mut failed = 0;
    for experiment in chosen {
        match attempt(experiment, &folder) {
            End::Done => {}
            End::NotRun(why) => println!("{}: not run: {why}", experiment.name),
            End::Failed(why) => {
                println!("{}: failed: {why}", experiment.name);
                failed += 1;
            }
        }
    }
    match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Returns `target/papers`.
fn output_folder() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target
        .unwrap_or(crate::root().join("target"))
        .join("papers")
}

/// Returns the selected experiments. Fails with the first unknown name.
fn chosen(parts: &[String]) -> Result<Vec<&'static Experiment>, &str> {
    let is_meant = |part: &str, of: &Experiment| part == of.name || part == of.paper.name();
    for part in parts {
        if !EXPERIMENTS.iter().any(|of| is_meant(part, of)) {
            return Err(part);
        }
    }
    let wanted = |of: &&Experiment| parts.is_empty() || parts.iter().any(|part| is_meant(part, of));
    Ok(EXPERIMENTS.iter().filter(wanted).collect())
}

fn list(experiments: &[&Experiment]) -> String {
    let mut text = String::new();
    for paper in Paper::ALL {
        let of: Vec<_> = experiments.iter().filter(|of| of.paper == paper).collect();
        if of.is_empty() {
            continue;
        }
        text += &format!("{}: {}\n", paper.name(), paper.title());
        for of in of {
            let minutes = format!("{} min", of.minutes);
            text += &format!("  {:<22} {minutes:>7}  {}\n", of.name, of.answers);
        }
    }
    text
}

fn attempt(experiment: &Experiment, folder: &Path) -> End {
    if let Some(missing) = experiment.needs.iter().find_map(|need| need.missing()) {
        return End::NotRun(missing);
    }
    println!("{}: about {} min", experiment.name, experiment.minutes);
    let mut sheets = Sheets::begin(folder, experiment.name);
    let result = catch_unwind(AssertUnwindSafe(|| (experiment.run)(&mut sheets)));
    match result {
        Ok(Ok(())) => match sheets.finish() {
            Ok(text) => {
                println!("{text}");
                End::Done
            }
            Err(error) => End::Failed(error.to_string()),
        },
        Ok(Err(why)) => End::Failed(why),
        // The panic has already been reported on standard error.
        Err(_) => End::Failed("it panicked".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Returns the experiments that a row of the page names by their commands.
    fn on_the_page() -> BTreeSet<String> {
        let path = crate::root().join("docs/papers.md");
        let page = std::fs::read_to_string(path).expect("the page");
        let rows = page.lines().filter(|line| line.starts_with('|'));
        let spans = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
        let commands = spans.filter_map(|span| span.strip_prefix("cargo experiment papers "));
        commands
            .flat_map(|names| names.split(' ').map(str::to_owned))
            .collect()
    }

    #[test]
    fn every_experiment_has_a_row_and_every_row_an_experiment() {
        let listed: BTreeSet<String> = EXPERIMENTS.iter().map(|of| of.name.to_owned()).collect();
        assert_eq!(listed.len(), EXPERIMENTS.len(), "names are unique");
        assert_eq!(on_the_page(), listed);
    }

    #[test]
    fn parts_are_papers_or_experiments() {
        let names = |parts: &[&str]| {
            let parts: Vec<String> = parts.iter().map(|&part| part.to_owned()).collect();
            let chosen = chosen(&parts).map_err(str::to_owned);
            chosen.map(|all| all.iter().map(|of| of.name).collect::<Vec<_>>())
        };
        let all = names(&[]).expect("all");
        assert_eq!(all.len(), EXPERIMENTS.len());
        let of_paper = names(&["slides"]).expect("a paper");
        assert!(!of_paper.is_empty() && of_paper.len() < all.len());
        assert_eq!(names(&[all[0]]), Ok(vec![all[0]]));
        assert_eq!(names(&[all[0], "nothing"]), Err("nothing".to_owned()));
    }

    #[test]
    fn the_list_has_every_experiment_once_with_its_time() {
        let text = list(&EXPERIMENTS.iter().collect::<Vec<_>>());
        for of in EXPERIMENTS {
            let lines = text
                .lines()
                .filter(|line| line.split_whitespace().next() == Some(of.name));
            assert_eq!(lines.count(), 1, "{}", of.name);
            assert!(of.minutes > 0 && !of.answers.is_empty(), "{}", of.name);
        }
    }

    #[test]
    fn what_is_missing_is_one_line_and_nothing_runs() {
        let experiment = Experiment {
            name: "impossible",
            paper: Paper::Slides,
            answers: "nothing",
            minutes: 1,
            needs: &[needs::Need::Program("no-such-program", "no-such-package")],
            run: |_| panic!("it runs"),
        };
        let End::NotRun(why) = attempt(&experiment, Path::new("/nonexistent")) else {
            panic!("it ran");
        };
        assert_eq!(why.lines().count(), 1);
        assert!(why.contains("apt-get install no-such-package"), "{why}");
    }
}
