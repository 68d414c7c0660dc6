//! Pins: names under which maps stay when nobody uses them.

use std::path::Path;

use skep::maps::Access;

use super::find::{find, pin_path};
use crate::directory;
use crate::failure::{Failure, Result};
use crate::printer::Printer;

/// Makes a pin of a map's file.
pub fn link(file: &Path, pin: &Path, name: &str) -> Result {
    let failed = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::AlreadyExists => {
            Failure::failed(format!("there already is a pin `{name}`"))
        }
        _ => Failure::environment(format!("cannot create the pin `{}`: {e}", pin.display())),
    };
    if let Some(folder) = pin.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    std::fs::hard_link(file, pin).map_err(failed)
}

/// Pins a map.
pub fn pin(text: &str, name: &str, printer: Printer) -> Result {
    let dir = directory::open()?;
    let map = find(&dir, text, Access::ReadOnly, printer)?;
    link(map.file().path(), &pin_path(&dir, name)?, name)
}

/// Removes a pin.
pub fn unpin(name: &str) -> Result {
    let pin = pin_path(&directory::open()?, name)?;
    std::fs::remove_file(&pin).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Failure::failed(format!("there is no pin `{name}`")),
        _ => Failure::environment(format!("cannot remove the pin `{}`: {e}", pin.display())),
    })
}
