//! Container image that contains only the binary, as an OCI image layout:
//! <https://github.com/opencontainers/image-spec>, image-layout.md.

use super::Release;
use super::archive::{File, gzip, sha256, tar};
use serde_json::{Value, json};

/// Returns the layout as a tar archive, for `podman load` and `skopeo copy oci-archive:`.
pub fn image(release: &Release, binary: &[u8]) -> anyhow::Result<Vec<u8>> {
    let program = File {
        path: "memhook-rs".to_owned(),
        mode: 0o755,
        bytes: binary.to_vec(),
    };
    let plain_layer = tar(&[program], release.epoch)?;
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": { "Entrypoint": ["/memhook-rs"] },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", sha256(&plain_layer))] },
    });
    let mut blobs = Vec::new();
    let layer = add(&mut blobs, "layer.v1.tar+gzip", gzip(&plain_layer)?);
    let config = add(&mut blobs, "config.v1+json", text(&config)?);
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": [layer],
    });
    let mut manifest = add(&mut blobs, "manifest.v1+json", text(&manifest)?);
    manifest["annotations"] = json!({
        "io.containerd.image.name": format!("docker.io/library/memhook-rs:{}", release.version),
        "org.opencontainers.image.ref.name": release.version,
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    });
    blobs.push(File::new("index.json", text(&index)?));
    blobs.push(File::new(
        "oci-layout",
        text(&json!({ "imageLayoutVersion": "1.0.0" }))?,
    ));
    tar(&blobs, release.epoch)
}

/// Adds a blob, and returns its description for references.
fn add(blobs: &mut Vec<File>, media_type: &str, bytes: Vec<u8>) -> Value {
    let digest = sha256(&bytes);
    let descriptor = json!({
        "mediaType": format!("application/vnd.oci.image.{media_type}"),
        "digest": format!("sha256:{digest}"),
        "size": bytes.len(),
    });
    blobs.push(File::new(format!("blobs/sha256/{digest}"), bytes));
    descriptor
}

fn text(value: &Value) -> anyhow::Result<Vec<u8>> {
    Ok(serde_json::to_vec(value)?)
}
