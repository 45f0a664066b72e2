//! Unwind tables of the target's modules, compiled once and written to the region.

use super::cache::Key;
use super::keeper::{TableKeeper, table_keeper};
use crate::error::Error;
use memhook_abi::unwind_rule::{self, pack};
use memhook_abi::{MAX_MODULES, MAX_RULES};
use memhook_process::{ModuleBytes, ModuleImage, RETURN, code_places};
use memhook_stream::{ModuleSpec, Region};
use memhook_unwind::{TableModule, UnwindTable, compile};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, atomic::AtomicUsize, atomic::Ordering::Relaxed},
};

/// Identity of a file's contents: their address in this process. Two mappings of one file share it.
type FileKey = usize;

fn key_of(module: &ModuleImage) -> FileKey {
    Arc::as_ptr(&module.bytes).addr()
}

/// Facts about a file.
struct KnownTable {
    /// Keeps the key unique.
    _bytes: Arc<ModuleBytes>,
    table: Arc<UnwindTable>,
    /// `ret` instruction (svma).
    ret_gadget: Option<u64>,
}

/// Tables by file, shared by several attaches.
#[derive(Clone, Default)]
pub struct KnownTables(HashMap<FileKey, Arc<KnownTable>>);

impl KnownTables {
    /// Forgets the tables of other files.
    pub fn keep_only(&mut self, modules: &[ModuleImage]) {
        let used: HashSet<FileKey> = modules.iter().map(key_of).collect();
        self.0.retain(|key, _| used.contains(key));
    }
}

/// Table of this attach.
struct Compiled {
    known: Arc<KnownTable>,
    /// First row in the region, once written.
    first_row: Option<u32>,
}

/// Tables of one attach.
#[derive(Default)]
pub struct UnwindTables {
    files: HashMap<FileKey, Compiled>,
    rules: HashMap<u64, u16>,
    rows: usize,
    /// Every address (avma) through which a wrapped dlopen has ever returned.
    gadgets: HashSet<u64>,
}

impl UnwindTables {
    /// Creates tables that begin with the tables of another attach.
    pub fn with_known(known: &KnownTables) -> UnwindTables {
        let entry = |(&key, known): (&FileKey, &Arc<KnownTable>)| {
            let known = Arc::clone(known);
            let first_row = None;
            (key, Compiled { known, first_row })
        };
        UnwindTables {
            files: known.0.iter().map(entry).collect(),
            ..UnwindTables::default()
        }
    }

    /// Forgets the tables of all modules other than the given ones, unless they are in the region.
    pub fn keep_only(&mut self, modules: &[ModuleImage]) {
        let used: HashSet<FileKey> = modules.iter().map(key_of).collect();
        self.files
            .retain(|key, file| file.first_row.is_some() || used.contains(key));
    }

    /// Adds all tables to `known`.
    pub fn tell(&self, known: &mut KnownTables) {
        let found = self.files.iter();
        let found = found.map(|(&key, file)| (key, Arc::clone(&file.known)));
        known.0.extend(found);
    }

    /// Compiles the tables of new modules in parallel. A module without call frame information gets an empty table, at
    /// which backtraces end.
    pub fn compile(&mut self, modules: &[ModuleImage]) {
        self.add(modules, None);
    }

    /// Like [`UnwindTables::compile`], but also uses tables that earlier runs have stored. It reads the user's files,
    /// which may be slow, so do not call it while a thread is held or waits in dlopen.
    pub fn find_or_compile(&mut self, modules: &[ModuleImage]) {
        let keeper = table_keeper();
        let compiled = self.add(modules, keeper);
        if let Some(keeper) = keeper.filter(|_| !compiled.is_empty()) {
            keeper.keep(compiled);
        }
    }

    /// Returns the compiled tables that are worth storing.
    fn add(
        &mut self,
        modules: &[ModuleImage],
        keeper: Option<&TableKeeper>,
    ) -> Vec<(Key, Arc<UnwindTable>)> {
        let mut new: Vec<&ModuleImage> = Vec::new();
        for module in modules {
            let known = |m: &&ModuleImage| key_of(m) == key_of(module);
            if !self.files.contains_key(&key_of(module)) && !new.iter().any(known) {
                new.push(module);
            }
        }
        if new.is_empty() {
            return Vec::new();
        }
        // The largest modules come first, so that the threads finish at about the same time.
        new.sort_by_key(|m| std::cmp::Reverse(m.bytes.len()));
        let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let compiled = Mutex::new(Vec::new());
        let work = || {
            while let Some(module) = new.get(next.fetch_add(1, Relaxed)) {
                let key = keeper.and_then(|_| Key::of(&module.bytes));
                let kept = keeper.and_then(|keeper| keeper.find(&key?));
                let is_kept = kept.is_some();
                let table = kept.unwrap_or_else(|| compile(&module.bytes).unwrap_or_default());
                let known = Arc::new(KnownTable {
                    _bytes: module.bytes.clone(),
                    ret_gadget: ret_gadget(&module.bytes, &table),
                    table: Arc::new(table),
                });
                if let (false, Some(key), Ok(mut compiled)) = (is_kept, key, compiled.lock()) {
                    compiled.push((key, Arc::clone(&known.table)));
                }
                let first_row = None;
                if let Ok(mut found) = found.lock() {
                    found.push((key_of(module), Compiled { known, first_row }));
                }
            }
        };
        // The standard library reads the limits of the control groups for this number.
        let processors = || std::thread::available_parallelism().map_or(1, |n| n.get());
        let threads = match new.len() {
            1 => 1,
            modules => modules.min(processors()),
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(work);
            }
            work();
        });
        self.files.extend(found.into_inner().unwrap_or_default());
        compiled.into_inner().unwrap_or_default()
    }

    /// Returns the tables for unwinding from outside.
    pub fn table_modules(&self, modules: &[ModuleImage]) -> Vec<TableModule> {
        modules
            .iter()
            .filter_map(|m| {
                Some(TableModule {
                    base: m.base,
                    start: m.start,
                    end: m.end,
                    table: Arc::clone(&self.files.get(&key_of(m))?.known.table),
                })
            })
            .collect()
    }

    /// Returns true if a wrapped dlopen may return through this instruction.
    pub fn is_gadget(&self, address: u64) -> bool {
        self.gadgets.contains(&address)
    }

    /// Returns all such instructions until now (avma).
    pub fn gadgets(&self) -> &HashSet<u64> {
        &self.gadgets
    }

    /// Compiles the tables of `modules` and writes them to the region unless they are already there. The first call is
    /// slow.
    pub fn prepare(&mut self, region: &Region, modules: &[ModuleImage]) {
        self.compile(modules);
        for module in modules {
            let Some(file) = self.files.get_mut(&key_of(module)) else {
                continue;
            };
            if file.first_row.is_some() {
                continue;
            }
            let table = &file.known.table;
            let rules = table.rules.iter();
            let numbers: Vec<u16> = rules
                .map(|&rule| number(&mut self.rules, region, rule))
                .collect();
            let rows = table.row_rules.iter();
            let row_rules: Vec<u16> = rows.map(|&r| numbers[usize::from(r)]).collect();
            // The region has no room for the rows: backtraces end there and count as cut short.
            if region
                .write_rows(self.rows, &table.offsets, &row_rules)
                .is_ok()
            {
                file.first_row = Some(self.rows as u32);
                self.rows += row_rules.len();
            }
        }
    }

    /// Makes `modules` the region's module list. If they do not fit, only the first modules are in the list. `made`:
    /// areas of run-time code. There, and in code of the executable that no table covers, frame pointers are followed.
    pub fn publish(
        &mut self,
        region: &Region,
        modules: &[ModuleImage],
        made: &[std::ops::Range<u64>],
    ) -> Result<(), Error> {
        self.prepare(region, modules);
        let mut specs = Vec::with_capacity(modules.len());
        for module in modules {
            let Some(file) = self.files.get(&key_of(module)) else {
                continue;
            };
            let ret_gadget = file
                .known
                .ret_gadget
                .map_or(0, |g| module.base.wrapping_add(g));
            self.gadgets.insert(ret_gadget);
            let rows = file.known.table.offsets.len() as u32;
            specs.push(ModuleSpec {
                start: module.start,
                end: module.end,
                ret_gadget,
                base: module.base,
                first_row: file.first_row.unwrap_or(0),
                row_count: file.first_row.map_or(0, |_| rows),
                // V8's builtin functions are machine code in the executable, generated by V8's own compiler.
                keeps_frame_pointers: module.is_main && !made.is_empty(),
                is_permanent: module.is_permanent,
            });
        }
        specs.extend(made.iter().map(|area| ModuleSpec {
            start: area.start,
            end: area.end,
            base: area.start,
            keeps_frame_pointers: true,
            ..ModuleSpec::default()
        }));
        specs.truncate(MAX_MODULES);
        region.publish_modules(&specs)?;
        Ok(())
    }
}

/// Returns the `ret` (svma) through which a wrapped dlopen returns. To an unwinder, it is the return address of the
/// loader's frame: the unwinder uses the row of the byte before it, and should find the next return address at the top
/// of the stack. The hook does not depend on that. So in a module without such a `ret`, any other `ret` works too,
/// because the loader only checks which module contains it.
fn ret_gadget(bytes: &ModuleBytes, table: &UnwindTable) -> Option<u64> {
    let at_entry = pack(unwind_rule::RSP, 8, unwind_rule::RBP_SAME, 0);
    let segments = code_places(bytes);
    let mut window = Window::default();
    let at_an_entry = table.rows_of(at_entry).find_map(|row| {
        segments.iter().find_map(|(code, offset)| {
            let (start, end) = (row.start.max(code.start), row.end.min(code.end));
            let length = usize::try_from(end.checked_sub(start)?).ok()?;
            let row_bytes = window.bytes(bytes, offset + (start - code.start), length)?;
            // The byte before it is in the same row.
            let at = row_bytes.iter().skip(1).position(|&byte| byte == RETURN)?;
            Some(start + 1 + at as u64)
        })
    });
    at_an_entry.or_else(|| {
        segments.iter().find_map(|(code, offset)| {
            let most = usize::try_from(code.end - code.start)
                .ok()?
                .min(Window::BYTES);
            let at = window
                .bytes(bytes, *offset, most)?
                .iter()
                .position(|&byte| byte == RETURN)?;
            Some(code.start + at as u64)
        })
    })
}

/// Part of a file, read once for several nearby lookups.
#[derive(Default)]
struct Window {
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    const BYTES: usize = 64 << 10;

    fn bytes(&mut self, file: &ModuleBytes, offset: u64, length: usize) -> Option<&[u8]> {
        let is_inside = |window: &Window| {
            let end = window.start + window.bytes.len() as u64;
            window.start <= offset && offset.checked_add(length as u64).is_some_and(|e| e <= end)
        };
        if !is_inside(self) {
            let most = length.max(Window::BYTES);
            self.bytes = file.at(usize::try_from(offset).ok()?, most)?.into_owned();
            self.start = offset;
        }
        let at = (offset - self.start) as usize;
        self.bytes.get(at..at + length)
    }
}

/// Returns the number of a rule in the region. If the region is full, returns 0, the number of the stop rule.
fn number(rules: &mut HashMap<u64, u16>, region: &Region, rule: u64) -> u16 {
    if rules.is_empty() {
        rules.insert(memhook_abi::unwind_rule::STOP, 0);
    }
    let next = rules.len();
    *rules.entry(rule).or_insert_with(|| {
        if next >= MAX_RULES {
            return 0;
        }
        region.write_rule(next as u16, rule);
        next as u16
    })
}
