//! Loading one object: its maps, its programs, and a link for each.

use std::path::Path;

use skep::Dir;
use skep::link::{AttachError, Link, LinkSpec, LinkTarget, describe, names_functions};
use skep::load::{LoadedMap, LoadedProgram, Loader};
use skep::maps::Map;
use skep::object::Object;
use skep::prototypes::Catalog;
use skep::usdt::{self, Probes};

use crate::failure::{Failure, Result};
use crate::objects::Objects;
use crate::printer::Printer;
use crate::rejection;
use crate::report::file_name;
use crate::unmatched;

/// One object, loaded and linked.
pub struct Loaded {
    pub object: Object,
    pub maps: Vec<LoadedMap>,
    /// Names and sections of programs, with their links.
    pub links: Vec<(String, String, Link)>,
    /// All of its programs: some are only called by others.
    _programs: Vec<LoadedProgram>,
}

/// What becomes of an object's programs.
struct Plan {
    /// Names of those that are attached.
    attached: Vec<String>,
    /// Why others are not.
    left: Vec<AttachError>,
}

/// What all objects of a command line are loaded with.
pub struct Loading<'a> {
    pub dir: &'a Dir,
    pub reading: &'a Objects,
    pub catalog: &'a Catalog,
    /// Where printed lines go.
    pub log: Option<&'a Map>,
    /// Programs and the patterns that they attach to instead of what their section names.
    pub attach: &'a [(&'a str, String)],
    pub exclude: &'a [String],
    pub printer: Printer,
}

impl Loading<'_> {
    /// Loads an object and creates the links of its programs.
    pub fn load(&self, path: &Path, object: Object) -> Result<Loaded> {
        let file = path.display().to_string();
        let loader = Loader::new(self.dir)
            .core_target(self.reading.target.as_ref())
            .functions(self.catalog)
            .exclude(self.exclude);
        let loader = self
            .attach
            .iter()
            .fold(loader, |loader, (program, pattern)| loader.attach(program, pattern));
        let plan = self.plan(&object);
        if let Some(p) = object.programs.first()
            && plan.attached.is_empty()
            && object.programs.iter().all(|p| !p.autoload)
        {
            let text = "no program is loaded unless it is named (`?` before its section)";
            return Err(Failure::environment(format!("`{file}`: {text}"))
                .hint(format!("name it with `--attach {}=PATTERN`", p.name)));
        }
        let loader = plan.attached.iter().fold(loader, |loader, name| loader.autoload_only(name));
        let loaded = loader.load(&object).map_err(|e| rejection::load_failure(e, &file))?;
        for why in plan.left {
            let (AttachError::Section { program, .. } | AttachError::NoTarget { program, .. }) =
                &why
            else {
                continue;
            };
            let names_none = matches!(why, AttachError::NoTarget { .. });
            // Attached to nothing, it may still be called by the others.
            if names_none && loaded.program(program).is_some() {
                continue;
            }
            if names_none && !self.names_any(&object) {
                return Err(rejection::attach_failure(why, &file));
            }
            self.printer.warning(&format!("`{file}`: {why}; it is left out"));
        }
        let mut links = Vec::new();
        let mut probes = Probes::new(loaded.maps(), self.catalog);
        let is_attached = |p: &LoadedProgram| {
            plan.attached.is_empty() || plan.attached.iter().any(|name| name == p.program().name())
        };
        for program in loaded.programs().iter().filter(|p| is_attached(p)) {
            let p = program.program();
            let link = self.link(program, &mut probes, &file)?;
            links.push((p.name().to_owned(), p.section().to_owned(), link));
        }
        let (_programs, maps) = loaded.into_parts();
        Ok(Loaded { object, maps, links, _programs })
    }

    /// Tells whether `--attach` says something of an object.
    fn names_any(&self, object: &Object) -> bool {
        self.attach.iter().any(|(name, _)| object.program(name).is_some())
    }

    /// Decides which programs are attached: those whose section names functions, and those that
    /// `--attach` names. Where there is no such program, loading the object says what is wrong.
    fn plan(&self, object: &Object) -> Plan {
        let (mut attached, mut left) = (Vec::new(), Vec::new());
        for p in &object.programs {
            let is_named = self.attach.iter().any(|(name, _)| *name == p.name);
            if !p.autoload && !is_named {
                continue;
            }
            match names_functions(p) {
                Err(why) if !is_named => left.push(why),
                _ => attached.push(p.name.clone()),
            }
        }
        if attached.is_empty() {
            left.clear();
        }
        Plan { attached, left }
    }

    fn link(&self, program: &LoadedProgram, probes: &mut Probes<'_>, file: &str) -> Result<Link> {
        let p = program.program();
        let named = self.attach.iter().filter(|(name, _)| *name == p.name());
        let patterns: Vec<String> = named.map(|(_, pattern)| pattern.clone()).collect();
        let spec = describe(program, &patterns).map_err(|e| rejection::attach_failure(e, file))?;
        let include = unmatched::patterns(&included(&spec)).map_err(|e| {
            e.hint(format!("see section `{}` of `{}`", p.section(), file_name(file)))
        })?;
        let spec =
            LinkSpec { include: LinkTarget::all(include), exclude: self.exclude.to_vec(), ..spec };
        let found = if usdt::is_usdt(program) {
            probes.find(&spec.include).map_err(|e| {
                Failure::environment(format!("program `{}`: {e}", p.name()))
                    .hint("`readelf -n FILE` lists the probes of a file")
            })?
        } else {
            Vec::new()
        };
        let link =
            Link::create(self.dir, spec, self.log).map_err(|e| rejection::load_failure(e, file))?;
        link.add_probes(&found)?;
        link.tell(0, &program.functions().types)?;
        if let Some((note, hint)) = &program.functions().note {
            self.printer.warning(&format!("{}: {note}", p.name()));
            self.printer.note(&format!("hint: {hint}"));
        }
        Ok(link)
    }
}

/// Lists the patterns of functions that a link attaches to.
pub fn included(spec: &LinkSpec) -> Vec<String> {
    spec.include.iter().map(|t| t.pattern.clone()).collect()
}
