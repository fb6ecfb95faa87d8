//! The user's sites file as an editable document: edits preserve the user's text, including comments and order.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, TableLike, Value, value};
use types::SitesFile;
use types::sites::{Fingerprint, Login};

use crate::here::folders::{self, Written};
use crate::slurm::{self, SlurmSetting};
use crate::turn::ChangeTurn;
use crate::{Progress, SetupError};

/// A sites file in memory and its path. The file may not exist yet, and may name no site yet.
#[derive(Clone, Debug)]
pub struct Book {
    path: PathBuf,
    document: DocumentMut,
    /// Lock against other commands that change the file, held while this and its clones exist.
    turn: Option<Arc<ChangeTurn>>,
    /// The texts that the file has unless somebody else has changed it. Empty: it is not compared.
    expected: Vec<String>,
}

/// The entry of a new site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteEntry {
    /// `host:port` that other sites dial.
    pub advertise: Option<String>,
    /// The login for gateways of other sites, if they do not dial.
    pub ssh: Option<Login>,
    /// `host:port` that the site's own nodes dial.
    pub inside: String,
    /// `address:port` the gateway binds.
    pub listen: String,
    pub nodes: Vec<String>,
    /// The starter of agents on its nodes.
    pub starter: Start,
}

/// Ways to start agents on a new site's nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The node is the gateway's machine.
    Local,
    /// The gateway's machine reaches the nodes through ssh.
    Ssh,
    /// Slurm allocates nodes when a job needs them.
    Slurm,
}

impl Book {
    /// Reads the sites file at `path`, or starts an empty one.
    ///
    /// # Errors
    /// It cannot be read, or makes no sense.
    pub fn open(path: &Path) -> Result<Book, SetupError> {
        let text = folders::read_sites(path).map_err(|e| SetupError::SitesFile(Box::new(e)))?.unwrap_or_default();
        Ok(Book { expected: vec![text.clone()], ..Book::of(path, &text)? })
    }

    /// [`Book::open`] for a command that will write the file. First waits for other such commands.
    ///
    /// # Errors
    /// As [`Book::open`]; the file cannot be replaced; another command takes too long.
    pub async fn change(path: &Path, progress: &mut dyn Progress) -> Result<Book, SetupError> {
        let turn = Some(Arc::new(ChangeTurn::take(path, progress).await?));
        Ok(Book { turn, ..Book::open(path)? })
    }

    /// Parses the text of a sites file; `path` is its name in messages and the path for saving it.
    ///
    /// # Errors
    /// The text makes no sense.
    pub fn of(path: &Path, text: &str) -> Result<Book, SetupError> {
        SitesFile::parse_begun(text, &path.display().to_string())?;
        let wrong = |e: toml_edit::TomlError| SetupError::Request(format!("{}: {e}", path.display()));
        Ok(Book { path: path.to_owned(), document: text.parse().map_err(wrong)?, turn: None, expected: Vec::new() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn text(&self) -> String {
        self.document.to_string()
    }

    /// The sites in the file, checked. Empty if it names none yet.
    ///
    /// # Errors
    /// It is not a sites file.
    pub fn sites(&self) -> Result<SitesFile, SetupError> {
        Ok(SitesFile::parse_begun(&self.text(), &self.path.display().to_string())?)
    }

    /// Records a text that this command writes at a site. A site on this machine may share the file.
    pub(crate) fn expect(&mut self, text: &str) {
        self.expected.push(text.to_owned());
    }

    /// Checks that nobody else has changed the file since it was read, and that the lock still keeps others out.
    ///
    /// # Errors
    /// [`SetupError::TakenOver`]; the file cannot be read.
    pub(crate) fn check(&self) -> Result<(), SetupError> {
        let taken = |problem| Err(SetupError::TakenOver { path: self.path.clone(), problem });
        if self.turn.as_ref().is_some_and(|turn| !turn.is_held()) {
            return taken("its lock file was removed or replaced, so another command may have changed it meanwhile");
        }
        let there = folders::read_sites(&self.path).map_err(|e| SetupError::SitesFile(Box::new(e)))?;
        let there = there.unwrap_or_default();
        match self.expected.is_empty() || self.expected.contains(&there) {
            true => Ok(()),
            false => taken("another command or an editor has changed it meanwhile"),
        }
    }

    /// Writes the file, or removes it if it is empty.
    ///
    /// # Errors
    /// The file cannot be written; [`SetupError::TakenOver`].
    pub fn save(&mut self) -> Result<(), SetupError> {
        let text = self.text();
        if text.trim().is_empty() {
            self.check()?;
            match std::fs::remove_file(&self.path) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    return Err(SetupError::File { path: self.path.clone(), source });
                }
                _ => {}
            }
            self.expected = vec![String::new()];
            return Ok(());
        }
        let wrong = |e| SetupError::SitesFile(Box::new(e));
        // Compares after the new text is on the disk, which may take long.
        let written = Written::new(&self.path, &text).map_err(wrong)?;
        self.check()?;
        written.place().map_err(wrong)?;
        self.expected = vec![text];
        Ok(())
    }

    /// Appends a site.
    pub(crate) fn add(&mut self, name: &str, entry: &SiteEntry) -> Result<(), SetupError> {
        let mut site = Table::new();
        site["name"] = value(name);
        site["key"] = value(folders::key_name(name));
        if self.tables()?.is_empty() {
            // Text that the user wrote into a file without sites stays at its head.
            let head = self.document.trailing().as_str().unwrap_or_default().to_owned();
            self.document.set_trailing("");
            site.decor_mut().set_prefix(head);
        }
        self.tables()?.push(site);
        self.describe(name, entry)
    }

    /// Sets the fingerprint that identifies a site, and the login and folder by which the user reaches its machine.
    pub(crate) fn identify(
        &mut self,
        name: &str,
        fingerprint: &Fingerprint,
        ssh: Option<&str>,
        folder: Option<&str>,
    ) -> Result<(), SetupError> {
        let site = self.table(name)?;
        site["fingerprint"] = value(fingerprint.to_string());
        for (field, text) in [("ssh", ssh), ("folder", folder)] {
            match text {
                Some(text) => site[field] = value(text),
                None => {
                    site.remove(field);
                }
            }
        }
        if !site.contains_key("key") {
            site["key"] = value(folders::key_name(name));
        }
        Ok(())
    }

    /// Sets a site's gateway, nodes and starter. Other settings of the gateway stay.
    pub(crate) fn describe(&mut self, name: &str, entry: &SiteEntry) -> Result<(), SetupError> {
        self.set_gateway(name, entry)?;
        let site = self.table(name)?;
        let mut nodes = ArrayOfTables::new();
        for name in &entry.nodes {
            let mut node = Table::new();
            node["name"] = value(name);
            nodes.push(node);
        }
        if nodes.is_empty() {
            site.remove("node");
        } else {
            site["node"] = Item::ArrayOfTables(nodes);
        }
        let mut starter = Table::new();
        starter["kind"] = value(match entry.starter {
            Start::Local => "local",
            Start::Ssh => "ssh",
            Start::Slurm => "slurm",
        });
        site["starter"] = Item::Table(starter);
        Ok(())
    }

    /// Makes Slurm provide a site's nodes, with these settings.
    pub(crate) fn set_slurm(&mut self, name: &str, settings: &[SlurmSetting]) -> Result<(), SetupError> {
        let site = self.table(name)?;
        site.remove("node");
        slurm::apply(settings, site);
        Ok(())
    }

    /// A site's `[site.run]`, as the text of a separate file.
    pub(crate) fn run_of(&self, name: &str) -> Option<String> {
        let Some(Item::ArrayOfTables(sites)) = self.document.get("site") else { return None };
        let run = sites.get(position(sites, name)?)?.get("run")?.as_table_like()?;
        let mut kept = DocumentMut::new();
        kept["run"] = Item::Table(plain(run));
        Some(format!("# [site.run] of site {name}, kept for `landbridge sites add {name}`.\n{kept}"))
    }

    /// Restores a site's `[site.run]` from the text that [`Book::run_of`] returned.
    pub(crate) fn set_run(&mut self, name: &str, text: &str) -> Result<(), SetupError> {
        let kept: DocumentMut = text.parse().map_err(|e: toml_edit::TomlError| SetupError::Request(e.to_string()))?;
        if let Some(run) = kept.get("run").and_then(Item::as_table_like) {
            self.table(name)?["run"] = Item::Table(plain(run));
        }
        Ok(())
    }

    /// The file that keeps a site's `[site.run]` while the site is not in the sites file.
    pub(crate) fn kept_run(&self, name: &str) -> PathBuf {
        self.path.with_file_name(format!("{name}.run.toml"))
    }

    /// Sets the addresses and the ssh login of a site's first gateway.
    pub(crate) fn set_gateway(&mut self, name: &str, entry: &SiteEntry) -> Result<(), SetupError> {
        let site = self.table(name)?;
        let gateways = site.entry("gateway").or_insert(Item::ArrayOfTables(ArrayOfTables::new()));
        let Some(gateways) = gateways.as_array_of_tables_mut() else { return Err(inline(name, "gateway")) };
        if gateways.is_empty() {
            let mut gateway = Table::new();
            gateway["name"] = value("gw1");
            gateways.push(gateway);
        }
        let Some(gateway) = gateways.get_mut(0) else { return Err(inline(name, "gateway")) };
        gateway["inside"] = value(&entry.inside);
        gateway["listen"] = value(&entry.listen);
        let ssh = entry.ssh.as_ref().map(Login::to_string);
        for (field, text) in [("advertise", &entry.advertise), ("ssh", &ssh)] {
            match text {
                Some(text) => gateway[field] = value(text),
                None => {
                    gateway.remove(field);
                }
            }
        }
        Ok(())
    }

    /// Makes other sites reach a site's first gateway through ssh.
    pub(crate) fn set_login(&mut self, name: &str, login: &Login) -> Result<(), SetupError> {
        let gateways = self.table(name)?.get_mut("gateway").and_then(Item::as_array_of_tables_mut);
        let Some(gateway) = gateways.and_then(|gateways| gateways.get_mut(0)) else {
            return Err(inline(name, "gateway"));
        };
        gateway["ssh"] = value(login.to_string());
        Ok(())
    }

    /// Removes a site; returns whether it was in the file. A comment is removed with it only if no empty line separates
    /// them; otherwise the comment belongs to the file.
    pub(crate) fn remove(&mut self, name: &str) -> Result<bool, SetupError> {
        let tables = self.tables()?;
        let Some(at) = position(tables, name) else { return Ok(false) };
        let before = |site: &Table| site.decor().prefix().and_then(|text| text.as_str()).unwrap_or_default().to_owned();
        let above = tables.get(at).map(before).unwrap_or_default();
        let kept = above.rfind("\n\n").map_or("", |end| &above[..end + 2]);
        let kept = if kept.trim().is_empty() { "" } else { kept };
        tables.remove(at);
        if let Some(next) = tables.get_mut(at).filter(|_| !kept.is_empty()) {
            let text = format!("{kept}{}", before(next).trim_start_matches('\n'));
            next.decor_mut().set_prefix(text);
        } else if !kept.is_empty() {
            let text = format!("{kept}{}", self.document.trailing().as_str().unwrap_or_default());
            self.document.set_trailing(text);
        }
        if self.tables()?.is_empty() {
            self.document.remove("site");
        }
        Ok(true)
    }

    /// Appends a site of another file.
    pub(crate) fn append(&mut self, other: &Book, name: &str) -> Result<(), SetupError> {
        let Some(mut site) = other.entry(name).cloned() else { return Err(missing(name)) };
        let ours = self.tables()?;
        // Its position in the other file means nothing in this one: put it after all tables here.
        shift(&mut site, (ours.len() as isize + 1) * MOST_TABLES);
        ours.push(site);
        self.settle()
    }

    /// Replaces a site's entry by the entry in another file; the site keeps its place among the others.
    pub(crate) fn replace(&mut self, other: &Book, name: &str) -> Result<(), SetupError> {
        let Some(theirs) = other.entry(name).cloned() else { return Err(missing(name)) };
        let all: Vec<Table> = self.tables()?.iter().cloned().collect();
        self.document.remove("site");
        for mut site in all {
            if site.get("name").and_then(Item::as_str) == Some(name) {
                site = theirs.clone();
            }
            let ours = self.tables()?;
            shift(&mut site, (ours.len() as isize + 1) * MOST_TABLES);
            ours.push(site);
            self.settle()?;
        }
        Ok(())
    }

    /// Removes a site's fields `ssh`, `folder` and `key`.
    pub(crate) fn unreach(&mut self, name: &str) -> Result<(), SetupError> {
        let site = self.table(name)?;
        for field in ["ssh", "folder", "key"] {
            site.remove(field);
        }
        Ok(())
    }

    /// Parses the document again, which makes the positions of its tables match their text.
    fn settle(&mut self) -> Result<(), SetupError> {
        self.document = self.text().parse().map_err(|e: toml_edit::TomlError| SetupError::Request(e.to_string()))?;
        Ok(())
    }

    fn entry(&self, name: &str) -> Option<&Table> {
        let Some(Item::ArrayOfTables(sites)) = self.document.get("site") else { return None };
        sites.get(position(sites, name)?)
    }

    /// Removes the fields that are private to this machine: the user's logins at sites, the folders of copies, the
    /// commands that start agents, and the settings of programs. Returns the removed fields with the names of their
    /// sites. `with_logins`: keep the logins of gateways.
    pub(crate) fn keep_shared(&mut self, with_logins: bool) -> Vec<(String, String)> {
        const SITE: [&str; 9] =
            ["name", "key", "fingerprint", "next", "gateway", "node", "starter", "inside", "patience"];
        const GATEWAY: [&str; 7] = ["name", "advertise", "inside", "listen", "memory", "links", "meeting"];
        const NODE: [&str; 3] = ["name", "address", "slots"];
        const STARTER: [&str; 1] = ["kind"];
        let gateway_fields: Vec<&str> = GATEWAY.into_iter().chain(with_logins.then_some("ssh")).collect();
        let mut found = Vec::new();
        // Entries that are not tables cannot be filtered field by field.
        if !matches!(self.document.get("site"), None | Some(Item::ArrayOfTables(_))) {
            self.document.remove("site");
            return vec![(String::new(), "site, in brackets".to_owned())];
        }
        for site in self
            .document
            .get_mut("site")
            .and_then(Item::as_array_of_tables_mut)
            .into_iter()
            .flat_map(ArrayOfTables::iter_mut)
        {
            let name = site.get("name").and_then(Item::as_str).unwrap_or_default().to_owned();
            let mut left = strip(site, &SITE, "");
            for (field, known) in [("gateway", gateway_fields.as_slice()), ("node", &NODE)] {
                match site.get_mut(field) {
                    Some(Item::ArrayOfTables(tables)) => {
                        tables.iter_mut().for_each(|table| left.extend(strip(table, known, &format!("{field}."))));
                    }
                    Some(Item::Value(Value::Array(values))) => {
                        for table in values.iter_mut().filter_map(Value::as_inline_table_mut) {
                            left.extend(strip(table, known, &format!("{field}.")));
                        }
                    }
                    _ => {}
                }
            }
            if let Some(starter) = site.get_mut("starter").and_then(Item::as_table_like_mut) {
                left.extend(strip(starter, &STARTER, "starter."));
            }
            // A template is useless without its command.
            if left.iter().any(|field| field == "starter.command") {
                site.remove("starter");
            }
            if site.get("key").and_then(Item::as_str).is_some_and(|key| key.contains('/')) {
                site.remove("key");
                left.push("key, in a folder".to_owned());
            }
            left.sort();
            left.dedup();
            found.extend(left.into_iter().map(|field| (name.clone(), field)));
        }
        found
    }

    fn tables(&mut self) -> Result<&mut ArrayOfTables, SetupError> {
        let sites = self.document.entry("site").or_insert(Item::ArrayOfTables(ArrayOfTables::new()));
        sites.as_array_of_tables_mut().ok_or_else(|| inline("*", "site"))
    }

    fn table(&mut self, name: &str) -> Result<&mut Table, SetupError> {
        let tables = self.tables()?;
        let at = position(tables, name).ok_or_else(|| missing(name))?;
        tables.get_mut(at).ok_or_else(|| missing(name))
    }
}

fn missing(name: &str) -> SetupError {
    SetupError::Request(format!("no site {name} in the sites file"))
}

/// Removes all fields but these from a table. Returns their names, after `place`.
fn strip(table: &mut dyn TableLike, known: &[&str], place: &str) -> Vec<String> {
    let others = table.iter().map(|(field, _)| field.to_owned()).filter(|field| !known.contains(&field.as_str()));
    let others: Vec<String> = others.collect();
    others.iter().for_each(|field| drop(table.remove(field)));
    others.iter().map(|field| format!("{place}{field}")).collect()
}

/// A copy of the table without its position in its original file.
fn plain(table: &dyn TableLike) -> Table {
    let values = table.iter().filter_map(|(key, item)| Some((key, item.clone().into_value().ok()?)));
    values.map(|(key, value)| (key.to_owned(), value)).collect()
}

fn position(tables: &ArrayOfTables, name: &str) -> Option<usize> {
    tables.iter().position(|site| site.get("name").and_then(Item::as_str) == Some(name))
}

fn inline(name: &str, what: &str) -> SetupError {
    SetupError::Request(format!(
        "sites file: site {name}: `{what}` is an array in brackets; write it as [[…]] tables so that it can be edited"
    ))
}

/// More tables than any file has.
const MOST_TABLES: isize = 1_000_000;

/// Moves a table and its subtables towards the end of the file.
fn shift(table: &mut Table, by: isize) {
    if let Some(position) = table.position() {
        table.set_position(position + by);
    }
    for (_, item) in table.iter_mut() {
        match item {
            Item::Table(table) => shift(table, by),
            Item::ArrayOfTables(tables) => tables.iter_mut().for_each(|table| shift(table, by)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
