//! `report`: what a recording has to say.

mod profile;
mod series;
