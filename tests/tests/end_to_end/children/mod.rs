//! Children of traced processes, and several processes traced at the same time.

mod births;
mod evil_workers;
mod followed_processes;
mod forked_children;
mod forking_servers;
mod forks;
