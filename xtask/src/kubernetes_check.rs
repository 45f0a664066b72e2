//! `cargo xtask kubernetes-check`: checks the manifests for Kubernetes and the Helm chart, without a cluster. The chart
//! must render the same objects as the manifests, and both must conform to Kubernetes's schemas.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Programs, and the Go packages that they are built from.
const TOOLS: [(&str, &str); 3] = [
    ("helm", "helm.sh/helm/v3/cmd/helm@v3.22.0"),
    (
        "kubeconform",
        "github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0",
    ),
    ("kustomize", "sigs.k8s.io/kustomize/kustomize/v5@v5.7.1"),
];
/// Package of PyPI with the schemas of many versions of Kubernetes.
const SCHEMAS: &str = "kubernetes-validate==1.37.0";
/// The oldest version that has the role, and the newest version with schemas.
const VERSIONS: [&str; 2] = ["1.33.0", "1.37.0"];
/// Kinds of objects, as in the file names of their schemas.
const KINDS: [&str; 6] = [
    "configmap-v1",
    "serviceaccount-v1",
    "clusterrole-rbac-v1",
    "clusterrolebinding-rbac-v1",
    "daemonset-apps-v1",
    "networkpolicy-networking-v1",
];
/// Time limit in seconds for a download and its build.
const PATIENCE: &str = "600";
const NAME: &str = "memhook-rs-agent";
const NAMESPACE: &str = "monitoring";
/// Values that set everything that is empty by default, without settings for the kubelet.
const OTHER_VALUES: &str = r#"
image: {repository: registry.example/memhook-rs, tag: "1"}
imagePullSecrets: [{name: registry}]
configuration: "[[rule]]\nname = \"web\"\nprocess = \"nginx\"\n"
kubelet: {enabled: false}
networkPolicy: {enabled: false}
priorityClassName: system-node-critical
podAnnotations: {}
nodeSelector: {}
tolerations: []
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}
extraEnv: [{name: PYROSCOPE_URL, value: "http://store"}]
extraVolumes: [{name: token, secret: {secretName: store}}]
extraVolumeMounts: [{name: token, mountPath: /run/store, readOnly: true}]
"#;

/// Runs the checks. If programs or schemas are unavailable, reports the reason instead.
pub fn run() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let kept = root.join("target/kubernetes");
    let tools = match Tools::fetch(&kept) {
        Ok(tools) => tools,
        Err(why) => {
            println!("not run: {why:#}");
            return ExitCode::SUCCESS;
        }
    };
    match tools.check(&root.join("fleet/kubernetes"), &kept) {
        Ok(()) => {
            println!(
                "the chart renders the manifests, and both conform to Kubernetes {}",
                VERSIONS.join(" and ")
            );
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why:#}");
            ExitCode::FAILURE
        }
    }
}

struct Tools {
    helm: PathBuf,
    kubeconform: PathBuf,
    kustomize: PathBuf,
    schemas: PathBuf,
}

impl Tools {
    /// Builds missing tools, each within a time limit.
    fn fetch(kept: &Path) -> Result<Tools> {
        std::fs::create_dir_all(kept)?;
        let kept = kept.canonicalize()?;
        for (name, package) in TOOLS {
            if kept.join(name).is_file() {
                continue;
            }
            println!("building {name}");
            let mut go = Command::new("timeout");
            go.args([PATIENCE, "go", "install", package])
                .env("GOBIN", &kept);
            output(&mut go).with_context(|| format!("{name} cannot be built here"))?;
        }
        let schemas = kept.join("schemas");
        if !schemas.is_dir() {
            println!("fetching the schemas of Kubernetes");
            fetch_schemas(&kept, &schemas)
                .context("the schemas of Kubernetes cannot be had here")?;
        }
        let [helm, kubeconform, kustomize] = TOOLS.map(|(name, _)| kept.join(name));
        Ok(Tools {
            helm,
            kubeconform,
            kustomize,
            schemas,
        })
    }

    fn check(&self, manifests: &Path, kept: &Path) -> Result<()> {
        let chart = manifests.join("chart");
        let plain = self.kustomized(manifests)?;
        let rendered = self.rendered(&chart, &[])?;
        let same = self.normalized(&rendered, kept)?;
        // This line restarts the pods after a change of the configuration; the manifests have no equivalent.
        let is_compared = |line: &&str| !line.trim_start().starts_with("checksum/configuration:");
        let same: Vec<&str> = same.lines().filter(is_compared).collect();
        let plain_lines: Vec<&str> = plain.lines().collect();
        if let Some(at) = first_difference(&plain_lines, &same) {
            bail!(
                "the chart differs from the manifests at line {}: {:?} instead of {:?}",
                at + 1,
                same.get(at),
                plain_lines.get(at)
            );
        }
        output(
            Command::new(&self.helm)
                .args(["lint", "--quiet"])
                .arg(&chart)
                .args(kube_version(VERSIONS[0])),
        )?;
        let values = kept.join("values.yaml");
        std::fs::write(&values, OTHER_VALUES)?;
        let other = self.rendered(&chart, &["--values", path(&values)?])?;
        ensure!(
            !other.contains("ClusterRole") && !other.contains("serviceAccountToken"),
            "without the kubelet, the agent has a role or a token"
        );
        for version in VERSIONS {
            self.conforms(&plain, version, kept)?;
            self.conforms(&other, version, kept)?;
            // Proves that the check can find a mistake.
            let wrong = plain.replace("hostPID:", "hostPid:");
            ensure!(
                wrong != plain && self.conforms(&wrong, version, kept).is_err(),
                "a wrong field is not found"
            );
        }
        let refused = |arguments: &[&str], why: &str| {
            let refusal = self.rendered(&chart, arguments);
            let says = refusal
                .err()
                .map_or_else(String::new, |error| format!("{error:#}"));
            ensure!(
                says.contains(why),
                "the chart is not refused for {why:?}: {says}"
            );
            Ok(())
        };
        refused(&["--kube-version", "1.32.9"], "since Kubernetes 1.33")?;
        refused(
            &["--set", "kubelet.enabled=false"],
            "needs kubelet.enabled=true",
        )?;
        refused(&["--set", "kublet.enabled=false"], "kublet")
    }

    fn kustomized(&self, folder: &Path) -> Result<String> {
        output(Command::new(&self.kustomize).arg("build").arg(folder))
    }

    fn rendered(&self, chart: &Path, arguments: &[&str]) -> Result<String> {
        output(
            Command::new(&self.helm)
                .args(["template", NAME])
                .arg(chart)
                .args(["--namespace", NAMESPACE])
                .args(kube_version(VERSIONS[0]))
                .args(arguments),
        )
    }

    /// Returns the same objects in the format of kustomize.
    fn normalized(&self, text: &str, kept: &Path) -> Result<String> {
        let folder = kept.join("rendered");
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("all.yaml"), text)?;
        let kustomization = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [all.yaml]\n";
        std::fs::write(folder.join("kustomization.yaml"), kustomization)?;
        self.kustomized(&folder)
    }

    fn conforms(&self, text: &str, version: &str, kept: &Path) -> Result<()> {
        let file = kept.join("checked.yaml");
        std::fs::write(&file, text)?;
        let schemas = self.schemas.join(version);
        let location = format!(
            "{}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json",
            path(&schemas)?
        );
        output(
            Command::new(&self.kubeconform)
                .args(["-strict", "-summary", "-schema-location", &location])
                .arg(file),
        )
        .map(drop)
    }
}

fn kube_version(version: &str) -> [&str; 2] {
    ["--kube-version", version]
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().context("a path is not UTF-8 text")
}

/// Returns the index of the first line that differs between two texts.
fn first_difference(one: &[&str], other: &[&str]) -> Option<usize> {
    (0..one.len().max(other.len())).find(|&at| one.get(at) != other.get(at))
}

/// Copies the schemas of the used kinds to the directory in which kubeconform looks for them. References to web
/// addresses are replaced by the names of neighbouring files.
fn fetch_schemas(kept: &Path, schemas: &Path) -> Result<()> {
    let work = kept.join("schemas.unfinished");
    if work.exists() {
        std::fs::remove_dir_all(&work)?;
    }
    let wheel = work.join("wheel");
    std::fs::create_dir_all(&wheel)?;
    let mut pip = Command::new("timeout");
    pip.args([
        PATIENCE,
        "python3",
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
    ])
    .args(["--only-binary", ":all:", "--dest"])
    .arg(&wheel)
    .arg(SCHEMAS);
    output(&mut pip)?;
    let found = std::fs::read_dir(&wheel)?.flatten().next();
    let found = found.context("nothing was downloaded")?.path();
    let unpacked = work.join("unpacked");
    output(
        Command::new("python3")
            .args(["-m", "zipfile", "-e"])
            .arg(found)
            .arg(&unpacked),
    )?;
    for version in VERSIONS {
        let from = unpacked.join(format!(
            "kubernetes_validate/kubernetes-json-schema/v{version}-local-strict"
        ));
        let to = work.join("made").join(version);
        std::fs::create_dir_all(&to)?;
        for name in KINDS.into_iter().chain(["_definitions"]) {
            let file = format!("{name}.json");
            let text = std::fs::read_to_string(from.join(&file))?;
            let text = text.replace("\"/api/_definitions.json", "\"_definitions.json");
            let mut schema: Value = serde_json::from_str(&text)?;
            schema
                .as_object_mut()
                .context("a schema is an object")?
                .remove("$id");
            std::fs::write(to.join(&file), schema.to_string())?;
        }
    }
    std::fs::rename(work.join("made"), schemas)?;
    std::fs::remove_dir_all(&work)?;
    Ok(())
}

/// Returns the output of a program. If the program fails, the error contains its messages.
fn output(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("{:?} cannot be run", command.get_program()))?;
    let [text, errors] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    if !output.status.success() {
        let said = format!("{text}{errors}");
        let last: Vec<&str> = said.lines().rev().take(12).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        bail!("{}: {}", output.status, last.join("\n"));
    }
    Ok(text)
}
