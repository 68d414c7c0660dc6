//! Pins: names under which maps stay when nobody uses them.

use std::io::ErrorKind;
use std::path::Path;

use skep::Dir;
use skep::maps::Access;

use super::find::{find, pin_path};
use crate::directory;
use crate::failure::{Failure, Result};
use crate::printer::Printer;

/// Makes a pin of a map's file.
pub fn link(dir: &Dir, file: &Path, pin: &Path, name: &str) -> Result {
    dir.link_pin(file, pin).map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists => already(pin, name),
        _ => Failure::environment(format!("cannot create the pin `{name}`: {e}")),
    })
}

/// What has the name already.
pub fn already(pin: &Path, name: &str) -> Failure {
    let what = if pin.is_dir() { "a folder of pins" } else { "a pin" };
    Failure::failed(format!("there already is {what} `{name}`"))
}

/// Pins a map.
pub fn pin(text: &str, name: &str, printer: Printer) -> Result {
    let dir = directory::open()?;
    let map = find(&dir, text, Access::ReadOnly, printer)?;
    link(&dir, map.file().path(), &pin_path(&dir, name)?, name)
}

/// Removes a pin.
pub fn unpin(name: &str) -> Result {
    let dir = directory::open()?;
    let pin = pin_path(&dir, name)?;
    dir.unlink_pin(&pin).map_err(|e| match e.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => {
            Failure::failed(format!("there is no pin `{name}`"))
        }
        _ => Failure::environment(format!("cannot remove the pin `{name}`: {e}")),
    })
}
