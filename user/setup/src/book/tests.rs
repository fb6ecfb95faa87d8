use super::*;

fn entry(port: u16) -> SiteEntry {
    SiteEntry {
        advertise: Some(format!("login:{port}")),
        ssh: None,
        inside: format!("10.0.0.1:{port}"),
        listen: types::sites::any_address(port),
        nodes: vec!["n1".into(), "n2".into()],
        starter: Start::Ssh,
    }
}

fn with(book: &mut Book, name: &str, port: u16) {
    book.add(name, &entry(port)).unwrap();
    book.identify(name, &Fingerprint([7; 32]), Some("me@login"), None).unwrap();
}

#[test]
fn a_file_grows_site_by_site_and_is_always_one_that_the_parser_takes() {
    let mut book = Book::of(Path::new("x"), "# my sites\n").unwrap();
    assert!(book.sites().unwrap().sites.is_empty());
    with(&mut book, "lyon", 1);
    with(&mut book, "kyoto", 2);
    let sites = book.sites().unwrap();
    assert_eq!(sites.names(), "lyon, kyoto");
    let lyon = &sites.sites[0];
    assert_eq!((lyon.key.as_deref(), lyon.ssh.clone()), (Some("lyon.key"), "me@login".parse().ok()));
    assert_eq!((lyon.nodes.len(), lyon.gateways[0].inside.as_str()), (2, "10.0.0.1:1"));
    assert!(book.text().starts_with("# my sites\n"));
    let headed = |name: &str| {
        let mut book = Book::of(Path::new("x"), &format!("# OUR CENTRE\n\n# of lyon\n{}", &book.text()[11..])).unwrap();
        book.remove(name).unwrap();
        book.text()
    };
    let (first, last) = (headed("lyon"), headed("kyoto"));
    assert!(first.starts_with("# OUR CENTRE\n\n[[site]]\nname = \"kyoto\"") && !first.contains("of lyon"), "{first}");
    assert!(last.starts_with("# OUR CENTRE\n\n# of lyon\n[[site]]\nname = \"lyon\""), "{last}");
    let mut both = Book::of(Path::new("x"), &last).unwrap();
    both.remove("lyon").unwrap();
    assert_eq!(both.text(), "# OUR CENTRE\n\n");
    assert!(book.remove("lyon").unwrap() && !book.remove("lyon").unwrap());
    assert_eq!(book.sites().unwrap().names(), "kyoto");
    book.remove("kyoto").unwrap();
    assert!(book.sites().unwrap().sites.is_empty());
    with(&mut book, "lyon", 3);
    assert_eq!(book.sites().unwrap().names(), "lyon");
}

#[test]
fn a_site_whose_nodes_slurm_gives_names_none() {
    let mut book = Book::of(Path::new("x"), "").unwrap();
    let slurm = SiteEntry { nodes: Vec::new(), starter: Start::Slurm, ..entry(1) };
    book.add("lyon", &slurm).unwrap();
    book.identify("lyon", &Fingerprint([7; 32]), None, None).unwrap();
    assert!(book.sites().unwrap().sites[0].nodes.is_empty());
    book.describe("lyon", &entry(1)).unwrap();
    assert_eq!(book.sites().unwrap().sites[0].nodes.len(), 2);
    book.describe("lyon", &slurm).unwrap();
    assert!(book.sites().unwrap().sites[0].nodes.is_empty());
}

#[test]
fn how_programs_run_at_a_site_outlives_its_entry() {
    let mut book = Book::of(Path::new("/x/sites.toml"), "").unwrap();
    with(&mut book, "lyon", 1);
    assert_eq!(book.run_of("lyon"), None);
    let run = "[site.run]\ndirectory = \"~/w\" # mine\n[site.run.environment]\nA = \"1\"\n";
    let mut book = Book::of(book.path(), &format!("{}{run}", book.text())).unwrap();
    let wanted = book.sites().unwrap().sites[0].run.clone();
    let kept = book.run_of("lyon").unwrap();
    book.remove("lyon").unwrap();
    with(&mut book, "kyoto", 2);
    with(&mut book, "lyon", 3);
    book.set_run("lyon", &kept).unwrap();
    let sites = book.sites().unwrap().sites;
    assert_eq!((&sites[1].name[..], &sites[1].run), ("lyon", &wanted));
    assert_eq!(sites[0].run, types::sites::RunSettings::default());
    assert_eq!(book.kept_run("lyon"), Path::new("/x/lyon.run.toml"));
}

#[test]
fn what_the_user_wrote_survives() {
    let mut book = Book::of(Path::new("x"), "").unwrap();
    with(&mut book, "lyon", 1);
    let text = book.text().replace("[[site.node]]\nname = \"n1\"\n", "[[site.node]]\nname = \"n1\"\nslots = 4 # old\n");
    let text = text.replace("inside", "memory = \"1GiB\" # big\npage = \"127.0.0.1:7780\"\ninside");
    let mut book = Book::of(Path::new("x"), &text).unwrap();
    book.set_gateway("lyon", &SiteEntry { advertise: None, ..entry(9) }).unwrap();
    book.identify("lyon", &Fingerprint([8; 32]), None, Some("/scratch/lb")).unwrap();
    let text = book.text();
    assert!(text.contains("memory = \"1GiB\" # big") && text.contains("slots = 4 # old"), "{text}");
    let site = &book.sites().unwrap().sites[0];
    assert_eq!((site.gateways[0].advertise.as_deref(), site.ssh.as_ref()), (None, None));
    assert_eq!((site.gateways[0].inside.as_str(), site.folder.as_deref()), ("10.0.0.1:9", Some("/scratch/lb")));
    assert_eq!(site.gateways[0].page, Some("127.0.0.1:7780".parse().unwrap()));
}

#[test]
fn sites_of_another_file_are_appended_and_replaced_in_order() {
    let mut ours = Book::of(Path::new("x"), "").unwrap();
    with(&mut ours, "lyon", 1);
    let mut theirs = Book::of(Path::new("y"), "").unwrap();
    for (name, port) in [("kyoto", 5), ("lyon", 6), ("nancy", 7)] {
        with(&mut theirs, name, port);
    }
    let theirs = Book::of(Path::new("y"), &theirs.text()).unwrap();
    ours.append(&theirs, "kyoto").unwrap();
    ours.append(&theirs, "nancy").unwrap();
    let sites = ours.sites().unwrap();
    assert_eq!(sites.names(), "lyon, kyoto, nancy");
    assert_eq!(sites.sites[0].gateways[0].inside, "10.0.0.1:1");
    assert_eq!(sites.sites[2].gateways[0].inside, "10.0.0.1:7");
    let mut again = theirs.clone();
    again.replace(&ours, "lyon").unwrap();
    let sites = again.sites().unwrap();
    assert_eq!(sites.names(), "kyoto, lyon, nancy", "each keeps its place");
    let inside: Vec<_> = sites.sites.iter().map(|site| site.gateways[0].inside.as_str()).collect();
    assert_eq!(inside, ["10.0.0.1:5", "10.0.0.1:1", "10.0.0.1:7"]);
    assert!(again.append(&ours, "paris").is_err() && again.replace(&ours, "paris").is_err());
}

#[test]
fn what_cannot_be_edited_is_named() {
    for wrong in ["[[sit]]\n", "foo = \"x\"\n"] {
        let error = Book::of(Path::new("x.toml"), wrong).unwrap_err().to_string();
        assert!(error.contains("x.toml") && error.contains("unknown field"), "{error}");
    }
    assert!(Book::of(Path::new("x.toml"), "[[site]\n").unwrap_err().to_string().contains("x.toml"));
    assert!(Book::of(Path::new("x.toml"), "[[site]]\nname = \"a\"\n").unwrap_err().to_string().contains("x.toml"));
    let text = format!(
        "site = [{{ name = \"a\", fingerprint = \"sha256:{}\", gateway = [{{ name = \"g\", inside = \"h:1\" }}], \
         node = [{{ name = \"n\" }}] }}]\n",
        "0".repeat(64)
    );
    let mut book = Book::of(Path::new("x"), &text).unwrap();
    assert!(book.add("b", &entry(1)).unwrap_err().to_string().contains("[[…]]"));
}
