//! The embedded hook.

use crate::error::Error;
use goblin::elf::Elf;

/// The shared object that is loaded into targets.
pub const HOOK_OBJECT: &[u8] = include_bytes!(env!("MEMHOOK_HOOK_OBJECT"));

/// Addresses (svma) of the functions that the attacher calls in the hook.
pub struct EntryPoints {
    pub attach: u64,
    pub patch: u64,
    pub exchange: u64,
    pub close: u64,
}

fn parse() -> Result<Elf<'static>, Error> {
    Elf::parse(HOOK_OBJECT).map_err(|_| Error::HookObject("anything"))
}

/// Finds the entry points in the dynamic symbol table of the embedded object.
pub fn entry_points() -> Result<EntryPoints, Error> {
    let elf = parse()?;
    let find = |name: &'static str| {
        elf.dynsyms
            .iter()
            .find(|s| elf.dynstrtab.get_at(s.st_name) == Some(name))
            .map(|s| s.st_value)
            .ok_or(Error::HookObject(name))
    };
    Ok(EntryPoints {
        attach: find("memhook_attach")?,
        patch: find("memhook_patch")?,
        exchange: find("memhook_exchange")?,
        close: find("memhook_close")?,
    })
}

/// The hook as a module of a target that has it loaded at `base`.
pub fn hook_image(base: u64) -> Result<memhook_process::ModuleImage, Error> {
    static BYTES: std::sync::OnceLock<std::sync::Arc<memhook_process::ModuleBytes>> =
        std::sync::OnceLock::new();
    let elf = parse()?;
    let end = elf
        .program_headers
        .iter()
        .filter(|p| p.p_type == goblin::elf::program_header::PT_LOAD)
        .map(|p| p.p_vaddr + p.p_memsz)
        .max()
        .unwrap_or(0);
    Ok(memhook_process::ModuleImage {
        path: "memhook-hook".into(),
        file: std::path::PathBuf::new(),
        base,
        start: base,
        end: base + end.next_multiple_of(4096),
        build_id: None,
        is_main: false,
        is_loader: false,
        is_libc: false,
        facts: Default::default(),
        is_permanent: true,
        bytes: BYTES
            .get_or_init(|| std::sync::Arc::new(HOOK_OBJECT.to_vec().into()))
            .clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hook loads into any process: it needs no library and imports no symbol, and its only
    /// thread-local storage is one word.
    #[test]
    fn hook_imports_nothing() {
        let elf = Elf::parse(HOOK_OBJECT).unwrap();
        assert!(elf.libraries.is_empty(), "{:?}", elf.libraries);
        let undefined: Vec<_> = elf
            .dynsyms
            .iter()
            .filter(|s| s.st_shndx == 0 && s.st_name != 0)
            .filter_map(|s| elf.dynstrtab.get_at(s.st_name))
            .collect();
        assert!(undefined.is_empty(), "{undefined:?}");
        let tls = elf
            .program_headers
            .iter()
            .find(|p| p.p_type == goblin::elf::program_header::PT_TLS)
            .unwrap();
        assert_eq!(tls.p_memsz, 8);
        entry_points().unwrap();
    }
}
