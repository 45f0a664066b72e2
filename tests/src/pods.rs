//! Control groups of pods, laid out the way a kubelet does it, and an endpoint that answers like a
//! kubelet.
//!
//! A real kubelet would need a container runtime and an API server, but the agent only requests one
//! list.

use crate::agents::read;
use crate::until;
use serde_json::{Value, json};
use std::io::{BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Control group of a container in a pod. Dropping it removes the group; its processes must have
/// exited by then.
pub struct PodGroup {
    folders: Vec<PathBuf>,
    uid: String,
    container: String,
}

impl PodGroup {
    /// Creates a group in a hierarchy of version 1 or 2, with the names that systemd and the
    /// kubelet use. Returns `None` without permission.
    pub fn new(number: u32) -> Option<PodGroup> {
        let uid = format!("{:08x}-0000-4000-8000-{number:012x}", std::process::id());
        let container = format!("{:032x}{number:032x}", std::process::id());
        let slice = uid.replace('-', "_");
        let parts = [
            "kubepods.slice".to_owned(),
            "kubepods-burstable.slice".into(),
            format!("kubepods-burstable-pod{slice}.slice"),
            format!("cri-containerd-{container}.scope"),
        ];
        let tops = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"];
        let top = tops
            .into_iter()
            .find(|top| Path::new(top).join("cgroup.procs").exists())?;
        let mut folders = Vec::new();
        until("the groups are made", || {
            folders = parts
                .iter()
                .scan(PathBuf::from(top), |folder, part| {
                    folder.push(part);
                    Some(folder.clone())
                })
                .collect();
            let made = folders.iter().find_map(|folder| {
                std::fs::create_dir(folder)
                    .err()
                    .filter(|error| error.kind() != ErrorKind::AlreadyExists)
            });
            // Another test may have just removed the empty parent groups.
            let is_gone = made
                .as_ref()
                .is_some_and(|error| error.kind() == ErrorKind::NotFound);
            if made.is_some() && !is_gone {
                folders.clear();
            }
            !is_gone
        });
        (!folders.is_empty()).then_some(PodGroup {
            folders,
            uid,
            container,
        })
    }

    /// Returns the path of the file with the group's processes.
    pub fn processes(&self) -> PathBuf {
        self.folders.last().expect("one").join("cgroup.procs")
    }

    /// Moves a process into the group.
    pub fn take(&self, pid: u32) {
        std::fs::write(self.processes(), pid.to_string()).expect("moved");
    }

    /// Returns the id of the pod.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Returns the pod as an entry of the kubelet's list: in the namespace `shop` and the
    /// deployment `web`, with a container `app`.
    pub fn listed(&self, name: &str, annotations: &Value) -> Value {
        json!({
            "metadata": {
                "name": name, "namespace": "shop", "uid": self.uid, "annotations": annotations,
                "labels": {"app": "web", "pod-template-hash": "5d4f8c7b9"},
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d4f8c7b9", "uid": "1",
                    "controller": true, "blockOwnerDeletion": true
                }]
            },
            "spec": {"nodeName": "node", "containers": [{"name": "app", "image": "web"}]},
            "status": {"phase": "Running", "containerStatuses": [
                {"name": "app", "ready": true, "containerID": format!("containerd://{}", self.container)}
            ]}
        })
    }
}

impl Drop for PodGroup {
    fn drop(&mut self) {
        for folder in self.folders.iter().rev() {
            // A process that has just exited may still count. The parent groups also contain groups
            // of other tests.
            for _ in 0..1000 {
                let gone = std::fs::remove_dir(folder).is_ok() || !folder.exists();
                if gone || std::fs::read_dir(folder).is_ok_and(|mut of| of.any(is_group)) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

fn is_group(entry: std::io::Result<std::fs::DirEntry>) -> bool {
    entry.is_ok_and(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
}

/// Returns the list as JSON.
pub fn pod_list(pods: &[Value]) -> String {
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods}).to_string()
}

/// An endpoint that answers like a kubelet's read-only port, without encryption.
pub struct KubeletEndpoint {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

struct State {
    token: String,
    list: String,
    answered: u32,
}

impl KubeletEndpoint {
    /// Starts listening. Clients must send this token.
    pub fn start(token: &str, pods: &[Value]) -> KubeletEndpoint {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = KubeletEndpoint {
            address: listener.local_addr().expect("an address"),
            state: Arc::new(Mutex::new(State {
                token: token.to_owned(),
                list: pod_list(pods),
                answered: 0,
            })),
        };
        let state = Arc::clone(&endpoint.state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&state);
                std::thread::spawn(move || answer(stream, &state));
            }
        });
        endpoint
    }

    /// Returns its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Replaces the listed pods.
    pub fn lists(&self, pods: &[Value]) {
        lock(&self.state).list = pod_list(pods);
    }

    /// Replaces the required token.
    pub fn wants(&self, token: &str) {
        token.clone_into(&mut lock(&self.state).token);
    }

    /// Returns the number of requests so far.
    pub fn answered(&self) -> u32 {
        lock(&self.state).answered
    }
}

/// Answers any number of requests on one connection.
fn answer(stream: TcpStream, state: &Mutex<State>) {
    let Ok(mut to) = stream.try_clone() else {
        return;
    };
    let mut from = BufReader::new(stream);
    while let Some(request) = read(&mut from) {
        let mut state = lock(state);
        let bearer = format!("Bearer {}", state.token);
        let is_right = request.headers.get("authorization") == Some(&bearer);
        let (status, body) = match (is_right, request.line.as_str()) {
            (true, "GET /pods HTTP/1.1") => ("200 OK", state.list.clone()),
            (true, _) => ("404 Not Found", "404 page not found\n".into()),
            (false, _) => ("401 Unauthorized", "Unauthorized".into()),
        };
        state.answered += 1;
        drop(state);
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        if to.write_all((head + &body).as_bytes()).is_err() {
            return;
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("no panic")
}
