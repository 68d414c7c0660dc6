//! Object files, read as the command line asks: variables set, configuration filled in, target types
//! for CO-RE found.

use std::path::{Path, PathBuf};

use skep::chain::Assignments;
use skep::isa::sec;
use skep::object::{CoreTarget, DwarfError, GlobalError, LinkError, LinkOptions, Object};
use skep::prototypes::{Catalog, Given};
use skep_text::value::hex;

use crate::args::ObjectArgs;
use crate::failure::{Failure, Result};
use crate::files;

/// The types of the running kernel.
const KERNEL: &str = "/sys/kernel/btf/vmlinux";

/// Object files, ready to be linked.
pub struct Objects {
    /// The objects, in the order of their files.
    pub all: Vec<Object>,
    /// The types that programs are relocated against, if one of them needs any.
    pub target: Option<CoreTarget>,
    /// What was set of each object's variables.
    pub set: Vec<Assignments>,
}

impl Objects {
    /// Reads object files. Each `--set` counts for every object that has the variable, and one
    /// must.
    ///
    /// Without `--btf` and `--btf-from`, programs are relocated against the kernel's types, as by
    /// libbpf.
    pub fn read(paths: &[PathBuf], args: &ObjectArgs) -> Result<Self> {
        Self::read_with(paths, vec![Assignments::new(); paths.len()], args)
    }

    /// Does the same; each object has values for its variables already, which `--set` replaces.
    pub fn read_with(
        paths: &[PathBuf],
        mut known: Vec<Assignments>,
        args: &ObjectArgs,
    ) -> Result<Self> {
        let mut all = paths.iter().map(|p| parse(p)).collect::<Result<Vec<_>>>()?;
        for ((object, its), path) in all.iter_mut().zip(&known).zip(paths) {
            set_known(object, its, path)?;
        }
        for (name, value) in &args.set {
            set(&mut all, &mut known, name, value)?;
        }
        for (program, named) in &args.types {
            set_type(&mut all, program.as_deref(), named)?;
        }
        if let Some(section) = args.others.and_then(|kind| section_of(kind.name()).ok()) {
            let programs = all.iter_mut().flat_map(|o| &mut o.programs);
            for program in programs.filter(|p| p.def.is_none()) {
                program
                    .take_as(section)
                    .map_err(|e| Failure::environment(format!("`{}`: {e}", program.name)))?;
            }
        }
        Self::complete(all, known, paths, args)
    }

    fn complete(
        mut all: Vec<Object>,
        set: Vec<Assignments>,
        paths: &[PathBuf],
        args: &ObjectArgs,
    ) -> Result<Self> {
        for (object, path) in all.iter_mut().zip(paths) {
            skep::kconfig::fill(object)
                .map_err(|e| Failure::environment(format!("`{}`: {e}", path.display())))?;
        }
        let target = match (&args.btf, &args.btf_from) {
            (Some(path), _) => Some(types(path)?),
            (None, Some(path)) => Some(debug_types(path)?),
            (None, None)
                if all.iter().any(Object::needs_core_target) && Path::new(KERNEL).exists() =>
            {
                Some(types(Path::new(KERNEL))?)
            }
            (None, None) => None,
        };
        Ok(Self { all, target, set })
    }

    /// Returns where the types of a command's functions come from: what the user named, else the
    /// command's own debug information.
    pub fn catalog(&self, command: &std::ffi::OsStr, args: &ObjectArgs) -> Catalog {
        Catalog::of_command(command, self.given(args))
    }

    /// Returns the types that the user named.
    pub fn given(&self, args: &ObjectArgs) -> Option<Given> {
        match (&args.btf, &args.btf_from, &self.target) {
            (Some(_), _, Some(target)) => Some(Given::Btf(target.btf().clone())),
            (None, Some(path), _) => Some(Given::Program(path.clone())),
            _ => None,
        }
    }

    /// Returns how programs are to be linked.
    pub fn link_options(&self) -> LinkOptions<'_> {
        LinkOptions { target: self.target.as_ref(), ..LinkOptions::default() }
    }
}

/// What files begin with that clang writes for a linker to optimize.
const BITCODE: &[u8] = b"BC\xc0\xde";

/// Reads and parses an object file.
pub fn parse(path: &Path) -> Result<Object> {
    let name = path.display();
    let bytes = files::read(path)
        .map_err(|e| Failure::environment(format!("cannot read `{name}`: {e}")))?;
    Object::parse(&bytes).map_err(|e| {
        let hint = if bytes.starts_with(BITCODE) {
            "it is LLVM bitcode: compile without `-flto` and `-emit-llvm`"
        } else {
            "compile objects with `clang -g -O2 -target bpf -c NAME.bpf.c -o NAME.bpf.o`"
        };
        Failure::environment(format!("`{name}` cannot be used: {e}")).hint(hint)
    })
}

/// Sets variables of one object.
fn set_known(object: &mut Object, known: &Assignments, path: &Path) -> Result {
    known.iter().try_for_each(|(name, value)| {
        let wrong = |e| Failure::environment(format!("`{}`: {e}", path.display()));
        object.set_global(name, value).map_err(wrong)
    })
}

/// Sets a variable of all objects that have it, and notes that.
fn set(objects: &mut [Object], known: &mut [Assignments], name: &str, value: &str) -> Result {
    let mut unknown = None;
    let mut found = false;
    for (object, known) in objects.iter_mut().zip(known) {
        match object.set_global(name, value) {
            Ok(()) => {
                found = true;
                known.push((name.to_owned(), value.to_owned()));
            }
            Err(GlobalError::Unknown { name, known }) => match &mut unknown {
                Some(GlobalError::Unknown { known: all, .. }) => {
                    all.extend(known.into_iter().filter(|k| !all.contains(k)).collect::<Vec<_>>());
                }
                _ => unknown = Some(GlobalError::Unknown { name, known }),
            },
            Err(e @ GlobalError::NoTypes { .. }) => unknown = unknown.or(Some(e)),
            Err(e) => return Err(Failure::environment(format!("--set: {e}"))),
        }
    }
    match unknown {
        Some(e) if !found => Err(Failure::environment(format!("--set: {e}"))),
        _ => Ok(()),
    }
}

/// Sets the type of one program, or of those whose section names none; of all, if every section
/// names one.
fn set_type(objects: &mut [Object], program: Option<&str>, named: &str) -> Result {
    let wrong = |message: String| Failure::environment(format!("--type: {message}"));
    let section = section_of(named).map_err(|(what, hint)| wrong(what).hint(hint))?;
    let mut programs: Vec<_> = objects.iter_mut().flat_map(|o| &mut o.programs).collect();
    if let Some(program) = program {
        let known: Vec<String> = programs.iter().map(|p| format!("`{}`", p.name)).collect();
        programs.retain(|p| p.name == program);
        if programs.is_empty() {
            let failure = wrong(format!("there is no program `{program}`"));
            return Err(if known.is_empty() {
                failure
            } else {
                failure.hint(format!("the programs are {}", known.join(", ")))
            });
        }
    } else if programs.iter().any(|p| p.def.is_none()) {
        programs.retain(|p| p.def.is_none());
    }
    programs.into_iter().try_for_each(|p| p.take_as(section)).map_err(|e| wrong(e.to_string()))
}

/// The section's name that stands for a type; else what is wrong, and what to say instead.
fn section_of(named: &str) -> Result<&str, (String, String)> {
    if sec::parse(named).is_some() {
        return Ok(named);
    }
    let of_type: Vec<_> =
        sec::SECTIONS.iter().filter(|d| d.prog.name() == named && !d.sleepable).collect();
    let plain = of_type.iter().find(|d| d.attach.is_none());
    match (plain, of_type.as_slice()) {
        (Some(def), _) | (None, [def]) => Ok(def.name),
        (None, []) => {
            let near = sec::nearest(named)
                .map_or(String::new(), |near| format!("did you mean `{near}`? "));
            let wanted = "a section name that libbpf knows (`xdp`, `fentry/FUNCTION`), or a program type as `skep prog show OBJECT` prints it";
            Err((format!("`{named}` is not a program type"), format!("{near}TYPE is {wanted}")))
        }
        (None, several) => {
            let names: Vec<String> = several.iter().map(|d| format!("`{}`", d.name)).collect();
            Err((
                format!("`{named}` programs attach in several ways"),
                format!("use one of {}", names.join(", ")),
            ))
        }
    }
}

/// Reads the types in a file.
pub fn types(path: &Path) -> Result<CoreTarget> {
    let name = path.display();
    let bytes = files::read(path)
        .map_err(|e| Failure::environment(format!("cannot read `{name}`: {e}")))?;
    CoreTarget::parse(&bytes).map_err(|e| {
        Failure::environment(format!("`{name}` has no usable types: {e}"))
            .hint("`--btf` takes BTF, as in /sys/kernel/btf, or an ELF file with a section `.BTF`")
    })
}

/// Takes types from a program's debug information, or from the separate file that has it.
fn debug_types(path: &Path) -> Result<CoreTarget> {
    let failure = |path: &Path, e: &DwarfError| {
        let failure =
            Failure::environment(format!("`{}` has no usable types: {e}", path.display()));
        failure.hint("compile it with `-g`, or give `--btf-from` its separate debug file (Debian: package `…-dbgsym`)")
    };
    std::fs::File::open(path)
        .map_err(|e| Failure::environment(format!("cannot read `{}`: {e}", path.display())))?;
    let error = match CoreTarget::from_dwarf_at(path) {
        Ok(target) => return Ok(target),
        Err(e) => e,
    };
    if let DwarfError::Stripped { file, build_id } = &error
        && let Some(separate) = separate(path, file.as_deref(), build_id)
    {
        return CoreTarget::from_dwarf_at(&separate).map_err(|e| failure(&separate, &e));
    }
    Err(failure(path, &error))
}

/// Finds a program's separate debug file where debuggers look for it.
fn separate(program: &Path, name: Option<&str>, build_id: &[u8]) -> Option<PathBuf> {
    const ROOT: &str = "/usr/lib/debug";
    let mut places = Vec::new();
    if let Some((first, rest)) = build_id.split_first() {
        places.push(PathBuf::from(format!("{ROOT}/.build-id/{first:02x}/{}.debug", hex(rest))));
    }
    if let (Some(name), Some(dir)) =
        (name, std::fs::canonicalize(program).ok().as_deref().and_then(Path::parent))
    {
        let inside = dir.strip_prefix("/").unwrap_or(dir);
        places.extend([
            dir.join(name),
            dir.join(".debug").join(name),
            Path::new(ROOT).join(inside).join(name),
        ]);
    }
    places.into_iter().find(|p| p.is_file())
}

/// Says what to do about a program that cannot be linked.
pub fn hint(error: &LinkError) -> Option<String> {
    match error {
        LinkError::CoreTarget { .. } | LinkError::Core { .. } => {
            Some("use `--btf-from PROGRAM` for the types of a program's own build, `--btf FILE` for those in a file".to_owned())
        }
        LinkError::Section { .. } => Some("set the type of such programs with `--type TYPE`, such as `xdp` or `kprobe`".to_owned()),
        LinkError::Extern { kind: "configuration value", symbol, .. } => Some(format!("set it with `--set {symbol}=VALUE`")),
        _ => None,
    }
}
