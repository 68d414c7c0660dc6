//! Whose the files are that skep writes for its user, where it works as another one.

use std::fs::File;
use std::os::unix::fs::fchown;

/// Says whose they are, as `UID:GID`.
pub const ENV_OWNER: &str = "SKEP_OWNER";

/// Tells whether skep works as another user than who has started it.
pub fn is_another() -> bool {
    std::env::var_os(ENV_OWNER).is_some()
}

/// Gives a new file to the user who has started skep.
pub fn give(file: &File) {
    let owner = std::env::var(ENV_OWNER).unwrap_or_default();
    let ids =
        owner.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    if let Some((uid, gid)) = ids {
        // Who may not give it away has said so itself.
        drop(fchown(file, Some(uid), Some(gid)));
    }
}
