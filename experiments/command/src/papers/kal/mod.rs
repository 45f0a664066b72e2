//! Jeong et al., "KAL: Kernel-assisted Non-invasive Memory Leak Tolerance with a General-purpose Memory Allocator".

pub mod database;
pub mod downtime;
pub mod leaktest;
pub mod responses;
pub mod scan_cost;
pub mod web_service;
