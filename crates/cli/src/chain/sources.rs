//! The object files that chains in the kernel are made of.

use std::path::PathBuf;

use skep::chain::kernel::Sources;
use skep::chain::{Edit, Graph, ObjectHash};

use super::open;
use crate::args::ObjectArgs;
use crate::failure::{Failure, Result};
use crate::objects::Objects;

/// Names objects as their files are called, without what is behind the first dot.
pub fn of_files(paths: &[PathBuf], objects: Objects) -> Sources {
    let mut sources = Sources::new(objects.target);
    for (path, object) in paths.iter().zip(objects.all) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        sources.add(name.split('.').next().unwrap_or_default(), object);
    }
    sources
}

/// Describes a chain of the skep directory for the kernel, as it is now. Its programs are read again
/// from their object files, as those of the skep directory are made for its own maps.
pub fn of_chain(name: &str) -> Result<(Sources, Graph)> {
    let (_session, chain) = open(name).map_err(|failure| {
        let is_path = name.contains('/') || name.ends_with(".toml");
        if is_path { Failure::environment(format!("there is no file `{name}`")) } else { failure }
    })?;
    let (graph, files) = (chain.graph()?, chain.object_files()?);
    let no = |what: String| Failure::failed(format!("chain `{name}`: {what}"));
    for (n, file) in files.iter().enumerate() {
        let path = file.path.display();
        let bytes = std::fs::read(&file.path)
            .map_err(|e| Failure::environment(format!("cannot read `{path}`: {e}")))?;
        if ObjectHash::of(&bytes) != file.hash {
            return Err(no(format!("`{path}` is another file than when its programs were added"))
                .hint("add them again, or describe the chain in a file"));
        }
        let mut later = files.iter().skip(n + 1).flat_map(|f| &f.maps);
        if let Some(id) = later.find(|id| file.maps.contains(id)) {
            return Err(no(format!("map {id} belongs to programs that were added with `--map`"))
                .hint("in the kernel, programs share the maps of their object file only"));
        }
    }
    let paths: Vec<PathBuf> = files.iter().map(|f| f.path.clone()).collect();
    let sources = of_files(&paths, Objects::read(&paths, &ObjectArgs::default())?);
    let replace = graph.nodes().map(|(node, known)| {
        let program = &known.program;
        let from = files.iter().position(|f| f.programs.contains(&program.id));
        let from = from.ok_or_else(|| {
            no(format!("nobody noted which file program `{}` is from", program.name))
        })?;
        let program = sources.program(from, &program.name)?;
        Ok(Edit::Replace { node, program, expected: None })
    });
    let edits = replace.collect::<Result<Vec<_>>>()?;
    let graph = graph.transaction(0, &edits).map_err(|e| no(e.to_string()))?.0;
    Ok((sources, graph))
}
