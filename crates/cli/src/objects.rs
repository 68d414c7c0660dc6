//! Object files as the command line wants them: variables set, configuration filled in, types found to fit programs to.

use std::path::{Path, PathBuf};

use skep::object::{CoreTarget, GlobalError, LinkError, LinkOptions, Object};

use crate::args::ObjectArgs;
use crate::failure::{Failure, Result};
use crate::session;

/// The types of the running kernel.
const KERNEL: &str = "/sys/kernel/btf/vmlinux";

/// Object files, read and made ready to be linked.
pub struct Objects {
    /// The objects, in the order of their files.
    pub all: Vec<Object>,
    /// The types programs are fitted to, when one of them needs any.
    pub target: Option<CoreTarget>,
}

impl Objects {
    /// Reads object files. Each `--set` counts for every object that has the variable, and one must.
    ///
    /// Without `--btf`, programs are fitted to the kernel's types, as libbpf does.
    pub fn read(paths: &[PathBuf], args: &ObjectArgs) -> Result<Self> {
        let mut all = paths.iter().map(|p| session::object(p)).collect::<Result<Vec<_>>>()?;
        for (name, value) in &args.set {
            set(&mut all, name, value)?;
        }
        for (object, path) in all.iter_mut().zip(paths) {
            skep::kconfig::fill(object).map_err(|e| Failure::environment(format!("`{}`: {e}", path.display())))?;
        }
        let target = match &args.btf {
            Some(path) => Some(types(path)?),
            None if all.iter().any(Object::needs_core_target) && Path::new(KERNEL).exists() => Some(types(Path::new(KERNEL))?),
            None => None,
        };
        Ok(Self { all, target })
    }

    /// Returns how programs are to be linked.
    pub fn link_options(&self) -> LinkOptions<'_> {
        LinkOptions { target: self.target.as_ref(), ..LinkOptions::default() }
    }
}

fn set(objects: &mut [Object], name: &str, value: &str) -> Result {
    let mut unknown = None;
    let mut found = false;
    for object in objects {
        match object.set_global(name, value) {
            Ok(()) => found = true,
            Err(e @ (GlobalError::Unknown { .. } | GlobalError::NoTypes { .. })) => unknown = unknown.or(Some(e)),
            Err(e) => return Err(Failure::environment(format!("--set: {e}"))),
        }
    }
    match unknown {
        Some(e) if !found => Err(Failure::environment(format!("--set: {e}"))),
        _ => Ok(()),
    }
}

fn types(path: &Path) -> Result<CoreTarget> {
    let name = path.display();
    let bytes = std::fs::read(path).map_err(|e| Failure::environment(format!("cannot read `{name}`: {e}")))?;
    CoreTarget::parse(&bytes).map_err(|e| {
        Failure::environment(format!("`{name}` gives no types: {e}"))
            .hint("`--btf` takes BTF as the kernel shows it in /sys/kernel/btf, or an ELF file with a section `.BTF`")
    })
}

/// Says what to do about a program that cannot be linked.
pub fn hint(error: &LinkError) -> Option<String> {
    match error {
        LinkError::CoreTarget { .. } | LinkError::Core { .. } => Some("`--btf FILE` fits programs to other types".to_owned()),
        LinkError::Extern { kind: "configuration value", symbol, .. } => Some(format!("`--set {symbol}=VALUE` gives it one")),
        _ => None,
    }
}
