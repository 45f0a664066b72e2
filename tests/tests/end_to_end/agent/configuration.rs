//! The schema that editors use to complete and check the agent's configuration. It must have
//! exactly the same keys as the agent.

use super::manifests::block;
use memhook_tests::programs::Folder;
use memhook_tests::{JsonSchema, run};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

fn json(text: &str) -> Value {
    let table: toml::Table = text.parse().expect("TOML");
    serde_json::to_value(table).expect("JSON")
}

/// Returns the keys that the agent lists when it rejects an unknown key, for a configuration that
/// ends in the relevant table.
fn keys_of_agent(folder: &Folder, text: &str) -> BTreeSet<String> {
    let file = folder.path("wrong.toml");
    std::fs::write(&file, format!("{text}zzz = 1\n")).expect("written");
    let (code, _, errors) = run(&["agent", "--check", "--config", &file]);
    assert_eq!(code, 2, "{text}: {errors}");
    let (_, expected) = errors
        .split_once("unknown field `zzz`, expected ")
        .unwrap_or_else(|| panic!("{errors}"));
    let names = expected.split('`').skip(1).step_by(2);
    names.map(str::to_owned).collect()
}

#[test]
fn the_schema_has_every_key_and_no_other() {
    let folder = Folder::new("agent-keys");
    let schema = JsonSchema::of_configuration();
    let of_store = |name: &str| (format!("[{name}]\n"), format!("/properties/{name}"));
    let plain = |text: &str, place: &str| (text.to_owned(), place.to_owned());
    let namespace = "[kubernetes]\nkubelet = \"https://x\"\n[[kubernetes.namespace]]\n";
    for (text, place) in [
        plain("", ""),
        plain("[[rule]]\n", "/properties/rule/items"),
        plain(
            namespace,
            "/properties/kubernetes/properties/namespace/items",
        ),
        of_store("agent"),
        of_store("http"),
        of_store("symbols"),
        of_store("files"),
        of_store("pyroscope"),
        of_store("otlp"),
        of_store("kubernetes"),
    ] {
        let properties = schema.at(&format!("{place}/properties"));
        let properties = properties.as_object().expect("properties");
        let of_schema: BTreeSet<String> = properties.keys().cloned().collect();
        assert_eq!(of_schema, keys_of_agent(&folder, &text), "{place}");
        assert_eq!(
            schema.at(&format!("{place}/additionalProperties")),
            &Value::Bool(false)
        );
    }
}

/// A configuration that contains each key at least once.
const ALL: &str = r#"
include = ["more.d"]
labels = { region = "eu" }
[agent]
state = "/var/lib/memhook-rs"
max_targets = 30
max_cpu = "2%"
max_memory = "512M"
never = ["bank*"]
scan = "2s"
retry = "10s"
redact = true
experimental_otlp = true
[http]
listen = "127.0.0.1:9464"
hosts = ["node"]
per_process = false
[symbols]
names = "store"
[files]
directory = "/var/lib/profiles"
keep = 10
max_bytes = 1048576
[pyroscope]
url = "https://pyroscope.example.net"
tenant = "shop"
username = "ali"
password_file = "/nowhere/password"
ca = "/nowhere/ca.pem"
timeout = "5s"
queue = "1M"
max_age = "1h"
[otlp]
url = "http://collector:4318"
protocol = "http"
token_file = "/nowhere/token"
tenant = "shop"
ca = "/nowhere/ca.pem"
timeout = "5s"
queue = "1M"
max_age = "1h"
[kubernetes]
kubelet = "https://192.0.2.7:10250"
token_file = "/nowhere/token"
ca = "/nowhere/ca.pem"
verify = true
refresh = "1m"
timeout = "5s"
[[kubernetes.namespace]]
name = "shop-*"
max_targets = 5
max_cpu = "1%"
[[rule]]
name = "web"
executable = "/usr/sbin/nginx"
process = "nginx"
cgroup = "/kubepods.slice"
container = "0123*"
pod = "web-*"
namespace = "shop"
workload = "deployment/web"
opt_in = true
memory_above = "64M"
uid = 33
mode = "sampled"
sample = 65536
depth = 32
send = ["files", "pyroscope", "otlp"]
interval = "1m"
service = "shop"
version = "1"
resident = true
blackbox = true
follow_forks = false
max_targets = 3
duration = "1h"
[[rule]]
name = "within"
process = "redis*"
overhead = "1%"
[[rule]]
name = "searched"
process = "postgres"
mode = "scan"
pins = true
reclaim = "free"
advise = "daily"
max_hold = "20ms"
"#;

#[test]
fn what_the_agent_takes_fits_the_schema() {
    let schema = JsonSchema::of_configuration();
    let folder = Folder::new("agent-all-keys");
    let file = folder.path("agent.toml");
    std::fs::write(&file, ALL).expect("written");
    std::fs::create_dir(folder.path("more.d")).expect("made");
    let more = "[[rule]]\nname = \"more\"\nprocess = \"more\"\nsample = \"no size\"\n";
    std::fs::write(folder.path("more.d/rules.toml"), more).expect("written");
    let (code, _, errors) = run(&["agent", "--check", "--config", &file]);
    assert_eq!(code, 2, "{errors}");
    let place = format!("{}:4:10: ", folder.path("more.d/rules.toml"));
    assert!(errors.contains(&place), "{errors}");
    std::fs::remove_file(folder.path("more.d/rules.toml")).expect("removed");
    let (code, _, errors) = run(&["agent", "--check", "--config", &file]);
    assert_eq!(code, 0, "{errors}");
    schema.check(&json(ALL));
    // The agent accepts only one way to authenticate for each store.
    let ways = "[[rule]]\nname = \"a\"\nuid = 1\n[pyroscope]\nurl = \"http://x\"\nprotocol = \"http\"\ntoken_file = \"/a\"\n\
                [otlp]\nurl = \"http://x\"\nusername = \"a\"\npassword_file = \"/a\"\n";
    schema.check(&json(ways));
    assert_eq!(schema.unseen(), [""; 0]);
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fleet/agent.toml.example");
    let example = std::fs::read_to_string(example).expect("the example");
    schema.check(&json(&example));
    // Also checks the part that is commented out in the example.
    schema.check(&json(
        &example
            .replace("# [", "[")
            .replace("# url", "url")
            .replace("# t", "t"),
    ));
    schema.check(&json(&block("configmap.yaml", "agent.toml")));
}
