//! The object files that chains are made of. Programs of one file share its maps and global variables,
//! and files are told apart by their bytes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use skep::chain::kernel::{SourceFile, Sources};
use skep::chain::{Edit, Graph, ObjectFile, ObjectHash};
use skep::isa::ProgramType;

use super::described::Program;
use super::load::{check_variables, hash};
use super::open;
use crate::args::SetArgs;
use crate::failure::{Failure, Result};
use crate::objects::Objects;

/// Names an object as its file is called, without what is behind the first dot.
fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// Lists the object files of described programs, and of each program the number of its file. Programs
/// with maps of their own have a file each.
pub fn described(programs: &[Program]) -> Result<(Vec<SourceFile>, Vec<usize>)> {
    let mut hashes: BTreeMap<&Path, ObjectHash> = BTreeMap::new();
    let mut files: Vec<SourceFile> = Vec::new();
    let mut numbers = Vec::new();
    for program in programs {
        let path = program.object.as_path();
        let known = hashes.get(path).copied();
        let hash = known.map_or_else(|| hash(path), Ok)?;
        hashes.insert(path, hash);
        let is_shared = |f: &SourceFile| f.hash == hash && f.shares_maps && !program.own_maps;
        let number = files.iter().position(is_shared).unwrap_or_else(|| {
            let (path, set) = (path.to_owned(), Vec::new());
            files.push(SourceFile { path, hash, shares_maps: !program.own_maps, set });
            files.len() - 1
        });
        numbers.push(number);
        let Some(file) = files.get_mut(number) else { continue };
        for (name, value) in program.variables() {
            match file.set.iter().find(|(known, _)| *known == name) {
                None => file.set.push((name, value)),
                Some((_, other)) if *other == value => {}
                Some((_, other)) => {
                    let path = path.display();
                    let text = format!("`{path}`: `{name}` is both `{other}` and `{value}`");
                    return Err(Failure::environment(text).hint(
                        "programs of one file share its variables; `own_maps = true` gives a program its own",
                    ));
                }
            }
        }
    }
    Ok((files, numbers))
}

/// Reads object files, with what is set of their variables.
pub fn of_files(
    files: &[SourceFile],
    prog_type: ProgramType,
    variables: &SetArgs,
) -> Result<Sources> {
    let paths: Vec<PathBuf> = files.iter().map(|f| f.path.clone()).collect();
    let set = files.iter().map(|f| f.set.clone()).collect();
    let reading = variables.reading(prog_type);
    let Objects { all, target, set } = Objects::read_with(&paths, set, &reading)?;
    let mut sources = Sources::new(target);
    for ((file, object), set) in files.iter().zip(all).zip(set) {
        let number = sources.add(&name(&file.path), object);
        sources.is_from(number, SourceFile { set, ..file.clone() });
    }
    Ok(sources)
}

/// Describes a chain of the skep directory for the kernel, as it is now. Its programs are read again
/// from their object files, as those of the skep directory are made for its own maps.
pub fn of_chain(name: &str) -> Result<(Sources, Graph)> {
    let (_session, chain) = open(name).map_err(|failure| {
        let is_path = name.contains('/') || name.ends_with(".toml");
        if is_path { Failure::environment(format!("there is no file `{name}`")) } else { failure }
    })?;
    let (graph, files) = (chain.graph()?, chain.object_files()?);
    let what = format!("chain `{name}`");
    for (n, file) in files.iter().enumerate() {
        let mut later = files.iter().skip(n + 1).flat_map(|f| &f.maps);
        if let Some(id) = later.find(|id| file.maps.contains(id)) {
            return Err(Failure::failed(format!(
                "{what}: map {id} belongs to programs that were added with `--map`"
            ))
            .hint("in the kernel, programs share the maps of their object file only"));
        }
    }
    let (sources, edits) = again(&what, &graph, &files)?;
    let changed = graph.transaction(0, &edits);
    let graph = changed.map_err(|e| Failure::failed(format!("{what}: {e}")))?.0;
    Ok((sources, graph))
}

/// Reads the files of a chain's programs again, which must be the same. The edits put the programs that
/// were read in the places of those that the graph has.
pub fn again(what: &str, graph: &Graph, files: &[ObjectFile]) -> Result<(Sources, Vec<Edit>)> {
    let no = |why: String| Failure::failed(format!("{what}: {why}"));
    let paths: Vec<PathBuf> = files.iter().map(|f| f.path.clone()).collect();
    for file in files {
        if hash(&file.path)? != file.hash {
            let path = file.path.display();
            return Err(no(format!("`{path}` is another file than when its programs were added"))
                .hint("add them again, or describe the chain in a file"));
        }
    }
    let set = files.iter().map(|f| f.set.clone()).collect();
    let reading = SetArgs::default().reading(ProgramType::Xdp);
    let Objects { all, target, .. } = Objects::read_with(&paths, set, &reading)?;
    let mut sources = Sources::new(target);
    for (file, object) in files.iter().zip(all) {
        let number = sources.add(&name(&file.path), object);
        let ObjectFile { path, hash, shares_maps, set, .. } = file.clone();
        sources.is_from(number, SourceFile { path, hash, shares_maps, set });
    }
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
    Ok((sources, edits))
}

/// Finds the object of a file in a chain whose maps a new program is to share, or reads the file.
/// Returns its number.
pub fn add(
    sources: &mut Sources,
    path: &Path,
    own_maps: bool,
    variables: &SetArgs,
) -> Result<usize> {
    let hash = hash(path)?;
    if let Some((number, there)) = sources.shared(hash).filter(|_| !own_maps) {
        check_variables(path, &variables.set, there)?;
        return Ok(number);
    }
    let reading = variables.reading(ProgramType::Xdp);
    let Objects { all, target, set } = Objects::read(&[path.to_owned()], &reading)?;
    sources.relocate_against(target);
    let pair = all.into_iter().zip(set).next();
    let (object, set) = pair.ok_or_else(|| Failure::environment("no object"))?;
    let number = sources.add(&name(path), object);
    let path = path.to_owned();
    sources.is_from(number, SourceFile { path, hash, shares_maps: !own_maps, set });
    Ok(number)
}
