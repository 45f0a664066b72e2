//! Protects a target from us while some of its threads are held, and protects us from anything that could stall us.

pub(crate) mod continued;
pub(crate) mod guard;
pub(crate) mod signals;
pub(crate) mod starvation;
pub(crate) mod terminal_stops;
pub(crate) mod urgency;
pub(crate) mod watchdog;
