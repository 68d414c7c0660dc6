//! Maps by what people call them, and pins: names under which maps stay when nobody uses them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use skep_maps::{Access, Map as RawMap};
use skep_store::dir::Kind;

use crate::error::{Error, Result};
use crate::map::Map;
use crate::session::Session;

/// How many characters of a name a map's file keeps.
const KEPT: usize = 15;

impl Session {
    /// Opens a map by its file or a pin, wherever that lies.
    ///
    /// # Errors
    /// When it is no file of a map, or damaged.
    pub fn open_map_at(&self, path: impl AsRef<Path>) -> Result<Map> {
        let path = path.as_ref();
        skep_runtime::memory::guard();
        let map = RawMap::open(path, Access::ReadWrite)
            .map_err(|source| Error::Map { map: path.display().to_string(), source })?;
        let name = map.def().name.clone();
        Ok(Map::new(Arc::new(map), name))
    }

    /// Opens the map that has this name, of which files keep 15 characters, or that is pinned under
    /// it. Maps that cannot be read are passed over.
    ///
    /// # Errors
    /// When there is none, or several maps have the name.
    pub fn find_map(&self, name: &str) -> Result<Map> {
        let short = name.get(..KEPT).unwrap_or(name);
        let open = |id: &u32| self.open_map(*id).ok();
        let ids = self.dir().ids(Kind::Map)?;
        let mut named = ids.iter().filter_map(open).filter(|m| [name, short].contains(&m.name()));
        match (named.next(), named.next()) {
            (Some(map), None) => Ok(map),
            (Some(one), Some(two)) => Err(Error::SeveralMaps {
                name: name.to_owned(),
                ids: [one, two].iter().chain(&named.collect::<Vec<_>>()).map(|m| m.id()).collect(),
            }),
            (None, _) => match self.pin_path(name) {
                Ok(pin) if pin.exists() => self.open_map_at(pin),
                _ => Err(Error::NoMap { name: name.to_owned() }),
            },
        }
    }

    /// Pins a map of this directory: it stays when nobody uses it. A name may have folders in it.
    ///
    /// ```
    /// use skep::isa::MapType;
    /// use skep::maps::MapDef;
    ///
    /// # fn main() -> Result<(), skep::Error> {
    /// let session = skep::Session::scratch()?;
    /// let map = session.create_map(&MapDef::new(MapType::Array, 4, 8, 1).named("totals"))?;
    /// session.pin_map(&map, "shop/totals")?;
    /// assert_eq!(session.find_map("shop/totals")?.id(), map.id());
    /// session.unpin_map("shop/totals")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When there is a pin of the name, or it cannot be one.
    #[doc(alias = "BPF_OBJ_PIN")]
    pub fn pin_map(&self, map: &Map, name: &str) -> Result<()> {
        let pin = self.pin_path(name)?;
        let failed = |source| Error::Pin { what: "create", name: name.to_owned(), source };
        self.dir().link_pin(map.file().path(), &pin).map_err(failed)
    }

    /// Removes a pin.
    ///
    /// # Errors
    /// When there is none.
    pub fn unpin_map(&self, name: &str) -> Result<()> {
        let failed = |source| Error::Pin { what: "remove", name: name.to_owned(), source };
        self.dir().unlink_pin(&self.pin_path(name)?).map_err(failed)
    }

    /// Returns where a pin lies. A name leads nowhere else.
    fn pin_path(&self, name: &str) -> Result<PathBuf> {
        self.dir().pin(name).map_err(|e| {
            let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, e.why());
            Error::Pin { what: "name", name: name.to_owned(), source }
        })
    }
}

#[cfg(test)]
mod tests {
    use skep_isa::MapType;
    use skep_maps::MapDef;

    use super::*;

    #[test]
    fn maps_are_found_by_names_and_pins_and_nothing_else() {
        let session = Session::scratch().unwrap();
        let map =
            |name| session.create_map(&MapDef::new(MapType::Array, 4, 8, 1).named(name)).unwrap();
        let (one, two, other) = (map("same"), map("same"), map("other"));
        assert_eq!(session.find_map("other").unwrap().id(), other.id());
        match session.find_map("same").unwrap_err() {
            Error::SeveralMaps { ids, .. } => assert_eq!(ids, [one.id(), two.id()]),
            e => panic!("{e}"),
        }
        session.pin_map(&two, "mine/two").unwrap();
        assert_eq!(session.find_map("mine/two").unwrap().id(), two.id());
        let again = session.pin_map(&one, "mine/two").unwrap_err();
        assert_eq!(
            again.to_string(),
            "cannot create the pin `mine/two`: File exists (os error 17)"
        );
        session.unpin_map("mine/two").unwrap();
        assert_eq!(
            session.find_map("mine/two").unwrap_err().to_string(),
            "there is no map `mine/two`"
        );
        for name in ["", "../x", "/x", "a/../../x"] {
            assert!(matches!(session.pin_map(&one, name), Err(Error::Pin { what: "name", .. })));
        }
        assert_eq!(
            session.pin_map(&one, "/x").unwrap_err().to_string(),
            "cannot name the pin `/x`: it begins with `/`, and pins lie in the skep directory"
        );
    }
}
