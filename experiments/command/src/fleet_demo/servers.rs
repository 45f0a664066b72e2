//! Receivers of profiles and metrics: an OpenTelemetry Collector and a receiver for Pyroscope's API, both built from Go
//! modules, and Debian's Prometheus.

use super::hosts::{NAMES, Network, STORES, inside};
use super::run_well;
use crate::root;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Builder of the collector with the modules that fleet/demo/collector.yaml names.
const BUILDER: &str = "go.opentelemetry.io/collector/cmd/builder@v0.162.0";

/// Paths of the programs.
pub struct Programs {
    collector: PathBuf,
    receiver: PathBuf,
    prometheus: PathBuf,
}

fn go() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/local/go/bin".into()]);
    let found = folders
        .map(|folder| folder.join("go"))
        .find(|go| go.is_file());
    found.context("Go is not installed: the collector and the receiver are built with it")
}

/// Builds both programs if they are missing. `root` is the directory of the workspace.
pub fn build(root: &Path) -> Result<Programs> {
    let (target, demo, go) = (root.join("target/fleet"), root.join("fleet/demo"), go()?);
    std::fs::create_dir_all(&target)?;
    let prometheus = Path::new("/usr/bin/prometheus");
    ensure!(
        prometheus.is_file(),
        "Prometheus is not installed: apt-get install prometheus"
    );
    let programs = Programs {
        collector: target.join("otelcol"),
        receiver: target.join("receiver"),
        prometheus: prometheus.to_owned(),
    };
    let compile = |folder: &Path, to: &Path| {
        let mut command = Command::new(&go);
        command
            .args(["build", "-mod=mod", "-o"])
            .arg(to)
            .arg(".")
            .current_dir(folder);
        run_well(&mut command).map(drop)
    };
    if !programs.receiver.exists() {
        println!("building the receiver on Pyroscope's API");
        compile(&demo.join("receiver"), &programs.receiver)?;
    }
    if !programs.collector.exists() {
        println!("building the OpenTelemetry Collector");
        let mut generate = Command::new(&go);
        generate.args([
            "run",
            BUILDER,
            "--config",
            "collector.yaml",
            "--skip-compilation",
        ]);
        // The generator's last step is `go mod tidy`, which also needs the imports of all modules' tests. Some of these
        // imports are not available everywhere, and the compiled code needs none of them.
        let tidied = run_well(generate.current_dir(&demo));
        let sources = target.join("collector");
        ensure!(
            sources.join("main.go").exists(),
            "the builder has failed: {:?}",
            tidied.err()
        );
        compile(&sources, &programs.collector)?;
    }
    Ok(programs)
}

/// Running servers, killed on drop.
pub struct Servers(Vec<Child>);

const COLLECTOR: &str = r#"
receivers:
  otlp:
    protocols:
      http: {endpoint: "0.0.0.0:4318"}
exporters:
  file: {path: "OUT/collector.jsonl", flush_interval: 200ms}
service:
  telemetry: {metrics: {level: none}}
  pipelines:
    profiles: {receivers: [otlp], exporters: [file]}
"#;

/// Starts the servers in their network namespace.
pub fn start(programs: &Programs, _: &Network, out: &Path) -> Result<Servers> {
    let collector = out.join("collector.yaml");
    std::fs::write(
        &collector,
        COLLECTOR.replace("OUT", &out.display().to_string()),
    )?;
    let rules = root()
        .join("fleet/prometheus/memhook.rules.yml")
        .canonicalize()?;
    let mut prometheus = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{rules:?}]\nscrape_configs:\n\
         - job_name: memhook\n  static_configs:\n"
    );
    for (number, name) in NAMES.iter().enumerate() {
        prometheus += &format!(
            "  - {{targets: [\"10.222.{number}.2:9464\"], labels: {{instance: {name}}}}}\n"
        );
    }
    std::fs::write(out.join("prometheus.yml"), prometheus)?;
    let mut servers = Servers(Vec::new());
    let mut begin = |name: &str, program: &Path, words: Vec<String>| -> Result<()> {
        let log = std::fs::File::create(out.join(format!("{name}.log")))?;
        let mut command = inside(STORES, program);
        command
            .args(words)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        servers.0.push(
            command
                .spawn()
                .with_context(|| format!("cannot run {name}"))?,
        );
        Ok(())
    };
    let path = |file: &str| out.join(file).display().to_string();
    let words = vec![
        format!("--config=file:{}", collector.display()),
        "--feature-gates=service.profilesSupport".into(),
    ];
    begin("collector", &programs.collector, words)?;
    let words = ["-listen", "0.0.0.0:4040", "-out"]
        .map(str::to_owned)
        .into_iter()
        .chain([path("receiver.jsonl")]);
    begin("receiver", &programs.receiver, words.collect())?;
    let words = vec![
        format!("--config.file={}", path("prometheus.yml")),
        format!("--storage.tsdb.path={}", path("prometheus")),
        "--web.listen-address=127.0.0.1:9090".into(),
    ];
    begin("prometheus", &programs.prometheus, words)?;
    servers.await_ready(out)?;
    Ok(servers)
}

impl Servers {
    fn await_ready(&mut self, out: &Path) -> Result<()> {
        let until = Instant::now() + Duration::from_secs(60);
        while self.get("/api/v1/query", &["query=up"]).is_err() {
            ensure!(Instant::now() < until, "Prometheus does not answer");
            std::thread::sleep(Duration::from_millis(200));
        }
        for (child, name) in self
            .0
            .iter_mut()
            .zip(["collector", "receiver", "prometheus"])
        {
            if let Some(status) = child.try_wait()? {
                let log = std::fs::read_to_string(out.join(format!("{name}.log")))?;
                bail!("{name} has ended ({status}): {log}");
            }
        }
        Ok(())
    }

    /// Returns Prometheus's answer.
    pub fn get(&self, path: &str, parameters: &[&str]) -> Result<Value> {
        let mut command = inside(STORES, "curl");
        command.args(["-sfG", &format!("http://127.0.0.1:9090{path}")]);
        for parameter in parameters {
            command.args(["--data-urlencode", parameter]);
        }
        Ok(serde_json::from_str::<Value>(&run_well(&mut command)?)?["data"].take())
    }

    /// Returns the value of each series of a query, in one line.
    pub fn query(&self, query: &str) -> Result<String> {
        let answer = self.get("/api/v1/query", &[&format!("query={query}")])?;
        let series = answer["result"].as_array().cloned().unwrap_or_default();
        let texts = series.iter().map(|series| {
            let (labels, value) = (
                &series["metric"],
                series["value"][1].as_str().unwrap_or_default(),
            );
            format!(
                "{} {value}",
                labels["instance"].as_str().unwrap_or_default()
            )
        });
        Ok(texts.collect::<Vec<_>>().join(", "))
    }

    /// Returns the number of alert rules. Fails if Prometheus cannot evaluate one of them.
    pub fn rules(&self) -> Result<String> {
        let answer = self.get("/api/v1/rules", &[])?;
        let rules = answer["groups"][0]["rules"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let well = rules.iter().filter(|rule| rule["health"] == "ok").count();
        ensure!(
            well == rules.len() && well > 0,
            "rules that cannot be evaluated: {rules:?}"
        );
        let firing = rules.iter().filter(|rule| rule["state"] == "firing");
        let firing: Vec<_> = firing.filter_map(|rule| rule["name"].as_str()).collect();
        Ok(format!("{well} evaluated, firing: {firing:?}"))
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
