//! Files of the emulated machine: Debian's kernel, and the packages for the programs.

use super::building::runs;
use crate::DebianPackages;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(super) const EMULATOR: &str = "qemu-system-aarch64";
const KERNEL: &str = "linux-image-cloud-arm64";
const PACKAGES: [&str; 7] = [
    "busybox-static",
    "libc6",
    "libgcc-s1",
    "libjemalloc2",
    "libstdc++6",
    "musl",
    "musl-dev",
];
/// Kernel modules that the disk for the results needs, in dependency order.
const MODULES: [&str; 6] = [
    "virtio/virtio.ko",
    "virtio/virtio_ring.ko",
    "virtio/virtio_pci_legacy_dev.ko",
    "virtio/virtio_pci_modern_dev.ko",
    "virtio/virtio_pci.ko",
    "block/virtio_blk.ko",
];
/// Folders of packages that no program reads.
const UNUSED: [&str; 5] = ["apt", "boot", "lib/modules", "usr/include", "usr/share"];

/// Unpacked packages, kept in `target/arm64`.
pub struct Root {
    folder: PathBuf,
}

impl Root {
    /// Fetches the packages, unless they are there already.
    ///
    /// # Errors
    /// The missing program, or the package that cannot be fetched.
    pub fn get() -> Result<Root, String> {
        for (program, package) in [
            (EMULATOR, "qemu-system-arm"),
            ("cpio", "cpio"),
            ("apt-get", "apt (this needs Debian's packages)"),
        ] {
            if !runs(program) {
                return Err(format!("there is no {program}: install {package}"));
            }
        }
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
        let folder = target.join("arm64");
        let root = Root { folder };
        let failed = |e: io::Error| format!("{}: {e}", root.folder.display());
        fs::create_dir_all(&root.folder).map_err(failed)?;
        // Several test programs may fetch the packages at the same time.
        let lock = File::create(root.folder.join("lock")).map_err(failed)?;
        lock.lock().map_err(failed)?;
        if !root.initramfs().exists() {
            root.fetch()
                .map_err(|why| format!("cannot create an AArch64 machine here: {why}"))?;
        }
        Ok(root)
    }

    /// Returns the kernel's image.
    pub(super) fn kernel(&self) -> PathBuf {
        self.folder.join("kernel")
    }

    /// Returns the archive that the kernel unpacks as its first file system.
    pub(super) fn initramfs(&self) -> PathBuf {
        self.folder.join("root.cpio")
    }

    /// Returns the specs file that makes a glibc compiler compile for musl.
    pub(super) fn musl_specs(&self) -> PathBuf {
        self.folder.join("musl-gcc.specs")
    }

    fn fetch(&self) -> Result<(), String> {
        let failed = |e: io::Error| format!("{}: {e}", self.folder.display());
        let files = self.folder.join("files");
        if files.exists() {
            fs::remove_dir_all(&files).map_err(failed)?;
        }
        let suite = release()?;
        let packages = DebianPackages::new(&files.join("apt"), &[&suite], "arm64")?;
        let kernel = packages.dependency_of(KERNEL)?;
        packages.unpack(&[&[kernel.as_str()], &PACKAGES[..]].concat(), &files)?;

        let version = kernel.strip_prefix("linux-image-").unwrap_or(&kernel);
        fs::copy(files.join(format!("boot/vmlinuz-{version}")), self.kernel()).map_err(failed)?;
        let drivers = files.join(format!("lib/modules/{version}/kernel/drivers"));
        fs::create_dir_all(files.join("modules")).map_err(failed)?;
        for (number, module) in MODULES.into_iter().enumerate() {
            let to = files.join(format!("modules/{number}.ko"));
            fs::copy(drivers.join(module), to).map_err(failed)?;
        }

        let musl = "/usr/lib/aarch64-linux-musl";
        let specs = fs::read_to_string(files.join(&musl[1..]).join("musl-gcc.specs"));
        let there = |place: &str| files.join(&place[1..]).display().to_string();
        let include = "/usr/include/aarch64-linux-musl";
        let specs = specs.map_err(failed)?;
        let specs = specs
            .replace(musl, &there(musl))
            .replace(include, &there(include));
        fs::write(self.musl_specs(), specs).map_err(failed)?;

        let init = files.join("init");
        fs::write(&init, include_str!("init.sh")).map_err(failed)?;
        make_executable(&init).map_err(failed)?;
        let unfinished = self.folder.join("root.cpio.unfinished");
        archive(&files, &UNUSED, &unfinished)?;
        fs::rename(unfinished, self.initramfs()).map_err(failed)
    }
}

/// Returns the name of this system's Debian release.
fn release() -> Result<String, String> {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    name.map(str::to_owned)
        .ok_or_else(|| "/etc/os-release names no release of Debian".to_owned())
}

pub(super) fn make_executable(file: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755))
}

/// Writes the files of a folder as an initramfs, without the excluded parts.
pub(super) fn archive(folder: &Path, without: &[&str], to: &Path) -> Result<(), String> {
    let failed = |e: io::Error| format!("{}: {e}", to.display());
    let list = Command::new("find")
        .args([".", "-print0"])
        .current_dir(folder)
        .output()
        .map_err(failed)?;
    let is_left_out = |name: &&[u8]| {
        let name = String::from_utf8_lossy(name);
        without.iter().any(|part| {
            let rest = name.strip_prefix("./").and_then(|n| n.strip_prefix(part));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    };
    let names = list.stdout.split(|&byte| byte == 0);
    let names = names.filter(|name| !name.is_empty() && !is_left_out(name));
    let mut child = Command::new("cpio")
        .args(["--quiet", "-0", "-o", "-H", "newc", "-R", "0:0"])
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(File::create(to).map_err(failed)?)
        .spawn()
        .map_err(failed)?;
    let mut input = child.stdin.take().expect("piped");
    for name in names {
        input.write_all(name).map_err(failed)?;
        input.write_all(b"\0").map_err(failed)?;
    }
    drop(input);
    match child.wait() {
        Ok(status) if status.success() => Ok(()),
        ended => Err(format!("cpio: {ended:?}")),
    }
}
