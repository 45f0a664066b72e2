//! Reports: pure functions from a ledger to bytes.
