//! The program of one site: the programs typed for all sites, changed by those typed for this site and by the site's
//! entry in the sites file. No I/O.

use types::SitesFile;
use types::shell;
use types::sites::{RunSettings, Site};

use job::environment;
use job::home::{path_in, portable};
use job::message::{InputTo, MpiChoice, Otherwise, Part, Program};

/// The user's input for a job.
#[derive(Clone, Debug, Default)]
pub struct Typed {
    /// The programs, in the order of their ranks.
    pub parts: Vec<TypedPart>,
    /// The user's environment.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    pub mpi: MpiChoice,
    pub input: InputTo,
    /// See [`Program::raw`].
    pub raw: bool,
    /// The home directories that typed paths may be below, from [`job::home::homes`].
    pub homes: Vec<Vec<u8>>,
}

/// One of the programs that the user typed.
#[derive(Clone, Debug, Default)]
pub struct TypedPart {
    /// The program, with paths as they were typed.
    pub part: Part,
    /// Programs typed for single sites, by the site's name.
    pub own_programs: Vec<(String, Vec<u8>)>,
    /// The working directory at every site; overrides the sites file.
    pub wdir: Option<Vec<u8>>,
}

impl Typed {
    /// The program of the site called `name` when `run` was typed at site `home`.
    pub fn from_home(&self, home: &str, file: &SitesFile, name: &str) -> Program {
        let mut program = match file.site(name) {
            Some((_, site)) => self.at(site),
            None => self.with(self.parts.iter().map(|typed| typed.part.clone()).collect(), Vec::new()),
        };
        if name != home {
            environment::leave_site(&mut program.environment);
        }
        program
    }

    /// The program of a site.
    ///
    /// A program typed for this very site takes precedence over the sites file's, which takes precedence over the
    /// program typed for all sites. A typed path below the home directory is below the home directory there too, even
    /// in the program's arguments. Paths in the sites file stay unchanged.
    pub fn at(&self, site: &Site) -> Program {
        self.with(self.parts.iter().map(|typed| self.part_at(site, typed)).collect(), site.run.modules.clone())
    }

    fn with(&self, parts: Vec<Part>, modules: Vec<String>) -> Program {
        let (environment, mpi) = (self.environment.clone(), self.mpi);
        Program { parts, modules, environment, mpi, input: self.input, raw: self.raw }
    }

    fn part_at(&self, site: &Site, typed: &TypedPart) -> Part {
        let mut part = typed.part.clone();
        let mut otherwise = Otherwise::default();
        if let Some(word) = part.command.first_mut() {
            (*word, otherwise.program, otherwise.program_advice) = self.program_at(site, typed, word);
        }
        for (at, word) in part.command.iter_mut().enumerate().skip(1) {
            if let Some(carried) = self.argument(word) {
                otherwise.arguments.push((at as u32, std::mem::replace(word, carried)));
            }
        }
        (part.directory, otherwise.directory, otherwise.directory_advice) = self.directory_at(site, typed);
        part.otherwise = otherwise;
        let variables = site.run.environment.iter();
        let variables = variables.map(|(name, value)| (name.clone().into_bytes(), value.clone().into_bytes()));
        // The last value counts, so settings typed for this job override the site's permanent ones.
        part.settings.splice(0..0, variables);
        part
    }

    /// The program's path at a site, the path to use if it does not exist there, and advice.
    fn program_at(&self, site: &Site, typed: &TypedPart, word: &[u8]) -> (Vec<u8>, Option<Vec<u8>>, String) {
        let name = &site.name;
        if let Some((_, own)) = typed.own_programs.iter().find(|(site, _)| site == name) {
            let (path, otherwise) = self.carried(own);
            let copied = push(site, &String::from_utf8_lossy(&path));
            return (path, otherwise, format!("{copied}; --site {name}=N:PATH names another path"));
        }
        let (path, otherwise) = self.carried(word);
        // Users write into the file either the path that they type or the path that a message shows.
        let known = [word, &path].into_iter().filter_map(|word| std::str::from_utf8(word).ok());
        let put = known.filter_map(|word| site.run.programs.get(word)).next();
        let shown = String::from_utf8_lossy(&path).into_owned();
        let line = format!("programs = {{ {shown:?} = \"/path/at/{name}\" }}");
        // A program that is found in PATH is installed, not copied.
        let copied = if shown.contains('/') { push(site, &shown) } else { String::new() };
        let advice = copied + &site_run(site, &line);
        match put {
            Some(put) => (put.clone().into_bytes(), None, advice),
            None => (path, otherwise, advice),
        }
    }

    fn directory_at(&self, site: &Site, typed: &TypedPart) -> (Vec<u8>, Option<Vec<u8>>, String) {
        if let Some(directory) = &typed.wdir {
            let (path, otherwise) = self.carried(directory);
            let copied = push(site, &String::from_utf8_lossy(&path));
            return (path, otherwise, format!("{copied}; --wdir DIR names another one"));
        }
        let advice = site_run(site, &format!("directory = \"/path/at/{}\"", site.name));
        match &site.run.directory {
            Some(directory) => (directory.clone().into_bytes(), None, advice),
            None => {
                let (path, otherwise) = self.carried(&typed.part.directory);
                let copied = push(site, &String::from_utf8_lossy(&path));
                (path, otherwise, copied + &advice)
            }
        }
    }

    /// The form in which an argument is sent to the nodes, if it contains a path below the user's home.
    fn argument(&self, word: &[u8]) -> Option<Vec<u8>> {
        let (option, path) = word.split_at(path_in(word)?);
        let carried = portable(path, &self.homes);
        (carried != path).then(|| [option, &carried].concat())
    }

    /// The form in which a typed path is sent to the nodes, and the typed path if it differs.
    fn carried(&self, path: &[u8]) -> (Vec<u8>, Option<Vec<u8>>) {
        let carried = portable(path, &self.homes);
        let differs = carried != path;
        (carried, differs.then(|| path.to_vec()))
    }
}

/// Advice on copying a file to a site that ssh reaches.
fn push(site: &Site, path: &str) -> String {
    if site.ssh.is_none() {
        return String::new();
    }
    let path = shell::path(path);
    format!(
        "\nTo copy it there: add `--push {path}` to this command, or type `landbridge sites push {path} --to {}`",
        site.name
    )
}

/// Advice on entering a path at a site into the sites file.
fn site_run(site: &Site, line: &str) -> String {
    let name = &site.name;
    match site.run == RunSettings::default() {
        true => format!(
            "\nIf it is elsewhere at site {name}, add these lines to the end of its entry in the sites file:\n  [site.run]\n  {line}"
        ),
        false => format!(
            "\nIf it is elsewhere at site {name}, write into [site.run] of its entry in the sites file:\n  {line}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(part: Part) -> Typed {
        Typed { parts: vec![TypedPart { part, ..TypedPart::default() }], ..Typed::default() }
    }

    #[test]
    fn a_providers_path_stays_at_its_site_unless_typed() {
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
        let part = Part { settings: vec![provider.clone()], ..Part::default() };
        let typed = Typed { environment, ..typed(part) };
        let at = |name: &str| typed.from_home("a", &file, name);
        assert_eq!(at("a").environment, [provider.clone(), other.clone()]);
        assert_eq!(at("b").environment, [other], "a module set it, for site a");
        assert_eq!(at("b").parts[0].settings, [provider], "-x was meant for all");
    }

    #[test]
    fn a_program_typed_for_a_site_overrides_its_entry() {
        let text = format!(
            "[[site]]\nname=\"a\"\nfingerprint=\"sha256:{}\"\ngateway=[{{name=\"g\",inside=\"h:1\"}}]\nnode=[{{name=\"n\"}}]\n\
             [site.run]\nprograms={{\"./solver\"=\"/opt/solver\"}}\ndirectory=\"~/x\"\nmodules=[\"m/1\"]\nenvironment={{A=\"1\"}}\n",
            "0".repeat(64)
        );
        let file = SitesFile::parse(&text, "x.toml").unwrap();
        let part = |word: &str| Part { command: vec![word.into(), b"arg".to_vec()], ..Part::default() };
        let homes = || vec![b"/home/u".to_vec()];
        let at = |typed: TypedPart| {
            let typed = Typed { parts: vec![typed], homes: homes(), ..Typed::default() };
            typed.at(&file.sites[0])
        };
        let first = |typed: TypedPart| at(typed).parts.remove(0);
        let all = |word: &str| TypedPart { part: part(word), ..TypedPart::default() };
        let named = |word: &str, own: &str| TypedPart { own_programs: vec![("a".into(), own.into())], ..all(word) };
        assert_eq!(first(all("./solver")).command, [b"/opt/solver".to_vec(), b"arg".to_vec()]);
        assert_eq!(first(named("./solver", "./mine")).command[0], b"./mine");
        assert_eq!(first(all("other")).command[0], b"other");
        let mut set = all("other");
        set.part.settings = vec![(b"A".to_vec(), b"2".to_vec())];
        let settings = first(set).settings;
        assert_eq!(settings.last(), Some(&(b"A".to_vec(), b"2".to_vec())), "what was typed comes last, and counts");
        let there = first(named("other", "/home/u/own"));
        assert_eq!((&there.command[0][..], &there.directory[..]), (&b"~/own"[..], &b"~/x"[..]));
        assert_eq!(there.otherwise.program.as_deref(), Some(&b"/home/u/own"[..]));
        assert!(there.otherwise.program_advice.contains("--site a=N:PATH"), "{}", there.otherwise.program_advice);
        let below = first(all("/home/u/bin/x"));
        assert_eq!(below.command[0], b"~/bin/x");
        assert!(below.otherwise.program_advice.ends_with(
            "write into [site.run] of its entry in the sites file:\n  programs = { \"~/bin/x\" = \"/path/at/a\" }"
        ));
        let typed = TypedPart { wdir: Some(b"/w".to_vec()), ..all("other") };
        assert_eq!(first(typed.clone()).directory, b"/w");
        assert_eq!(first(typed.clone()).settings, [(b"A".to_vec(), b"1".to_vec())]);
        assert_eq!(at(typed.clone()).modules, ["m/1"]);
        let argued = TypedPart {
            part: Part {
                command: ["python", "/home/u/job.py", "--in=/home/u/x", "/data", "~/y"]
                    .map(|word| word.as_bytes().to_vec())
                    .to_vec(),
                ..Part::default()
            },
            ..TypedPart::default()
        };
        let argued = first(argued);
        let shown: Vec<_> = argued.command.iter().map(|word| String::from_utf8_lossy(word)).collect();
        assert_eq!(shown, ["python", "~/job.py", "--in=~/x", "/data", "~/y"]);
        let typed_words = [(1, b"/home/u/job.py".to_vec()), (2, b"--in=/home/u/x".to_vec())];
        assert_eq!(argued.otherwise.arguments, typed_words, "what the user quoted is no path of a home");
        // Each program is tailored separately.
        let second = TypedPart { part: Part { first: 2, ..part("./solver") }, ..TypedPart::default() };
        let both = Typed { parts: vec![typed, second], homes: homes(), ..Typed::default() }.at(&file.sites[0]);
        let shown: Vec<_> =
            both.parts.iter().map(|part| (part.first, &part.command[0][..], &part.directory[..])).collect();
        assert_eq!(shown, [(0, &b"other"[..], &b"/w"[..]), (2, b"/opt/solver", b"~/x")]);
    }

    #[test]
    fn the_sites_file_may_name_a_program_as_typed_or_as_shown() {
        let file = |key: &str| {
            let print = "0".repeat(64);
            let text = format!(
                "[[site]]\nname=\"a\"\nfingerprint=\"sha256:{print}\"\ngateway=[{{name=\"g\",inside=\"h:1\"}}]\n\
                 node=[{{name=\"n\"}}]\n[site.run]\nprograms={{\"{key}\"=\"/opt/x\"}}\n"
            );
            SitesFile::parse(&text, "x.toml").unwrap()
        };
        for key in ["/home/u/x", "~/x"] {
            let part =
                Part { command: vec![b"/home/u/x".to_vec()], directory: b"/home/u/w".to_vec(), ..Part::default() };
            let typed = Typed { homes: vec![b"/home/u".to_vec()], ..typed(part) };
            let there = typed.at(&file(key).sites[0]).parts.remove(0);
            assert_eq!((&there.command[0][..], &there.directory[..]), (&b"/opt/x"[..], &b"~/w"[..]));
            assert_eq!((there.otherwise.program, there.otherwise.directory), (None, Some(b"/home/u/w".to_vec())));
        }
    }
}
