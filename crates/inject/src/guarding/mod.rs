//! Protection of a target from us while some of its threads are held, and of us from what could make us stand still.

pub(crate) mod continued;
pub(crate) mod guard;
pub(crate) mod signals;
pub(crate) mod starvation;
pub(crate) mod terminal_stops;
pub(crate) mod urgency;
pub(crate) mod watchdog;
