//! A program as one site is to run it: what the user typed, changed by what the user typed for this site and by the
//! site's entry in the sites file. Pure.

use types::SitesFile;
use types::sites::Site;

use crate::environment;
use crate::message::Program;

/// What the user typed for a job.
#[derive(Clone, Debug, Default)]
pub struct Typed {
    /// What to run.
    pub program: Program,
    /// Other programs for single sites, by name.
    pub own_programs: Vec<(String, Vec<u8>)>,
    /// The working directory at every site, whatever the sites file says.
    pub wdir: Option<Vec<u8>>,
}

impl Typed {
    /// What the site called `name` is to run when `run` was typed at site `home`.
    pub fn from_home(&self, home: &str, file: &SitesFile, name: &str) -> Program {
        let mut program = file.site(name).map_or_else(|| self.program.clone(), |(_, site)| self.at(site));
        if name != home {
            environment::leave_site(&mut program.environment);
        }
        program
    }

    /// What a site is to run. The program that was typed for this very site goes before the sites file's.
    pub fn at(&self, site: &Site) -> Program {
        let named = self.own_programs.iter().find(|(name, _)| *name == site.name).map(|(_, program)| &program[..]);
        let program = tailored(&self.program, site, named);
        match &self.wdir {
            Some(directory) => Program { directory: directory.clone(), ..program },
            None => program,
        }
    }
}

fn tailored(program: &Program, site: &Site, named: Option<&[u8]>) -> Program {
    let mut program = program.clone();
    if let Some(word) = program.command.first_mut() {
        let put = std::str::from_utf8(word).ok().and_then(|typed| site.run.programs.get(typed));
        if let Some(other) = named.or(put.map(String::as_bytes)) {
            *word = other.to_vec();
        }
    }
    if let Some(directory) = &site.run.directory {
        program.directory = directory.clone().into_bytes();
    }
    program.modules.clone_from(&site.run.modules);
    let variables = site.run.environment.iter();
    let variables = variables.map(|(name, value)| (name.clone().into_bytes(), value.clone().into_bytes()));
    // What was typed for this job goes before what always holds at the site: the last one counts.
    program.settings.splice(0..0, variables);
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_a_provider_stays_at_its_site_unless_it_was_typed() {
        let site = |name: &str| {
            let fingerprint = "0".repeat(64);
            format!(
                "[[site]]\nname=\"{name}\"\nfingerprint=\"sha256:{fingerprint}\"\n\
                 gateway=[{{name=\"g\",inside=\"h:1\"}}]\nnode=[{{name=\"n\"}}]\n"
            )
        };
        let file = SitesFile::parse(&(site("a") + &site("b")), "x.toml").unwrap();
        let provider = (b"LANDBRIDGE_PROVIDER".to_vec(), b"/opt/fi.so".to_vec());
        let other = (b"A".to_vec(), b"1".to_vec());
        let environment = vec![provider.clone(), other.clone()];
        let program = Program { environment, settings: vec![provider.clone()], ..Program::default() };
        let typed = Typed { program, ..Typed::default() };
        let at = |name: &str| typed.from_home("a", &file, name);
        assert_eq!(at("a").environment, [provider.clone(), other.clone()]);
        assert_eq!(at("b").environment, [other], "a module set it, for site a");
        assert_eq!(at("b").settings, [provider], "-x was meant for all");
    }

    #[test]
    fn what_is_typed_for_a_site_goes_before_its_entry() {
        let text = format!(
            "[[site]]\nname=\"a\"\nfingerprint=\"sha256:{}\"\ngateway=[{{name=\"g\",inside=\"h:1\"}}]\nnode=[{{name=\"n\"}}]\n\
             [site.run]\nprograms={{\"./solver\"=\"/opt/solver\"}}\ndirectory=\"~/x\"\nmodules=[\"m/1\"]\nenvironment={{A=\"1\"}}\n",
            "0".repeat(64)
        );
        let file = SitesFile::parse(&text, "x.toml").unwrap();
        let program = |word: &str| Program { command: vec![word.into(), b"arg".to_vec()], ..Program::default() };
        let at = |word: &str, named: Option<&[u8]>| tailored(&program(word), &file.sites[0], named);
        assert_eq!(at("./solver", None).command, [b"/opt/solver".to_vec(), b"arg".to_vec()]);
        assert_eq!(at("./solver", Some(b"./mine")).command[0], b"./mine");
        assert_eq!(at("other", None).command[0], b"other");
        let typed = Program { settings: vec![(b"A".to_vec(), b"2".to_vec())], ..program("other") };
        let settings = tailored(&typed, &file.sites[0], None).settings;
        assert_eq!(settings.last(), Some(&(b"A".to_vec(), b"2".to_vec())), "what was typed comes last, and counts");
        let typed = Typed { program: program("other"), own_programs: vec![("a".into(), b"own".to_vec())], wdir: None };
        let there = typed.at(&file.sites[0]);
        assert_eq!((&there.command[0][..], &there.directory[..]), (&b"own"[..], &b"~/x"[..]));
        let typed = Typed { wdir: Some(b"/w".to_vec()), ..typed };
        assert_eq!(typed.at(&file.sites[0]).directory, b"/w");
        let tailored = at("other", None);
        assert_eq!((tailored.directory, tailored.modules), (b"~/x".to_vec(), vec!["m/1".to_owned()]));
        assert_eq!(tailored.settings, [(b"A".to_vec(), b"1".to_vec())]);
    }
}
