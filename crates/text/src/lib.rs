//! What is in maps, as text, JSON and comma-separated values: by the types of the program where it
//! has any, else as bytes.
//!
//! [`entries`] knows what the bytes of a map mean; [`layout`] and [`csv`] write whole maps, by plans
//! that are made once for a map's types, and [`read`] reads what they wrote. The rest is what single
//! elements and records need: [`input`] as it is typed, [`key`]s, [`value`]s, and [`record`]s of rings;
//! and the [`fields`] of any JSON object of which there are many.

#![forbid(unsafe_code)]

pub mod csv;
pub mod elements;
pub mod entries;
pub mod fields;
pub mod from_json;
pub mod input;
pub mod key;
pub mod layout;
pub mod read;
pub mod record;
pub mod value;
