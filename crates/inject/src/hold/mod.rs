//! Choosing threads, stopping them, and releasing them unchanged.

pub(crate) mod all_threads;
pub(crate) mod held;
pub(crate) mod idle;
pub(crate) mod late;
pub(crate) mod others;
pub(crate) mod own_answers;
pub(crate) mod release;
pub(crate) mod resend;
pub(crate) mod safe_point;
pub(crate) mod saved;
pub(crate) mod seccomp;
pub(crate) mod slept;
pub(crate) mod stop;
pub(crate) mod survey;
pub(crate) mod synchronous;
pub(crate) mod timing;
pub(crate) mod wait;
