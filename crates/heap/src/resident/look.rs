//! Computes the account of a running process.

use crate::capture::limits::Limits;
use crate::capture::{Captured, Request, capture};
use crate::resident::account::{Account, Part, account};
use crate::resident::classes::TracedBlock;
use crate::{Error, Heap, KnownAllocator, Meta, Residency, Types, dissect};
use memhook_process::living_thread;

/// Observations of a process.
pub struct Looked {
    /// Account of the process's memory.
    pub account: Account,
    /// Facts about the copy of the memory, if it could be copied.
    pub meta: Option<Meta>,
}

/// Copies the memory of a process and accounts for its resident bytes. With `pins`, the account
/// includes the pages that blocks pin. If a process cannot be copied or has no known heap, the
/// account is based on the mappings alone and has a note about that.
pub fn look_at_memory(pid: i32, limits: Limits, pins: bool) -> Result<Looked, Error> {
    MemoryCopy::take(pid, limits)?.account(pins, Vec::new())
}

/// Copy of a process's memory, and its resident pages at that moment.
pub struct MemoryCopy(Copied);

enum Copied {
    Whole(Box<Captured>),
    /// The account without a copy.
    Not(Box<Account>),
}

impl MemoryCopy {
    /// Copies the memory of a process.
    pub fn take(pid: i32, limits: Limits) -> Result<MemoryCopy, Error> {
        let request = Request {
            limits,
            with_residency: true,
            ..Request::default()
        };
        let mut captured = match capture(pid, request) {
            Ok(captured) => captured,
            Err(
                why @ (Error::NoRoom { .. }
                | Error::NoSpace { .. }
                | Error::TooLong { .. }
                | Error::NoShortHold { .. }),
            ) => {
                let mut account = account_of_mappings(pid)?;
                account.ask_for_shares(pid);
                account.notes.push(format!("the heap is not split: {why}"));
                return Ok(MemoryCopy(Copied::Not(Box::new(account))));
            }
            Err(error) => return Err(error),
        };
        if captured.residency.is_none() {
            captured.residency = Some(Residency::read(living_thread(pid))?);
        }
        Ok(MemoryCopy(Copied::Whole(Box::new(captured))))
    }

    /// Accounts for the resident memory. With `pins`, it includes the pages that blocks pin; the
    /// blocks in `traced` are grouped by call stack.
    pub fn account(self, pins: bool, mut traced: Vec<TracedBlock>) -> Result<Looked, Error> {
        let captured = match self.0 {
            Copied::Whole(captured) => captured,
            Copied::Not(account) => {
                return Ok(Looked {
                    account: *account,
                    meta: None,
                });
            }
        };
        let (heap, why) = match dissect(&captured.snapshot) {
            Ok(heap) => (Some(heap), None),
            Err(why) => (None, Some(why)),
        };
        traced.sort_unstable_by_key(|block| block.address);
        let mut account = account_with(&captured, heap.as_ref(), pins, &traced)?;
        // If the process uses another allocator, the account already has a note about that
        // allocator.
        let is_foreign = account.parts.contains_key(&Part::ForeignHeap);
        let why = why.filter(|_| !is_foreign);
        account
            .notes
            .extend(why.map(|why| format!("the heap is not split: {why}")));
        Ok(Looked {
            account,
            meta: Some(captured.snapshot.meta),
        })
    }
}

/// Returns the account of a process by its mappings alone, which needs no hold.
pub fn account_of_mappings(pid: i32) -> Result<Account, Error> {
    let residency = Residency::read(living_thread(pid))?;
    Ok(account(None, None, None, &residency, None, &[]))
}

/// Returns the account of a process whose pages were read with its snapshot.
pub fn account_of(captured: &Captured, heap: Option<&Heap>, pins: bool) -> Result<Account, Error> {
    account_with(captured, heap, pins, &[])
}

fn account_with(
    captured: &Captured,
    heap: Option<&Heap>,
    pins: bool,
    traced: &[TracedBlock],
) -> Result<Account, Error> {
    let snapshot = &captured.snapshot;
    let fresh;
    let residency = match &captured.residency {
        Some(residency) => residency,
        None => {
            fresh = Residency::read(living_thread(snapshot.meta.pid))?;
            &fresh
        }
    };
    let mut types = Types::new(snapshot, &captured.images);
    let types = pins.then_some(&mut types);
    let trimmed = KnownAllocator::of(snapshot.meta.pid, &captured.images);
    let trimmed = trimmed.map(|allocator| allocator.name);
    let mut account = account(Some(snapshot), heap, trimmed, residency, types, traced);
    account.ask_for_shares(living_thread(snapshot.meta.pid));
    Ok(account)
}
