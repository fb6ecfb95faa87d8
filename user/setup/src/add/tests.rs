use super::*;
use types::SitesFile;
use types::sites::Site;

fn site(ssh: &str) -> Site {
    let print = "0".repeat(64);
    let text = format!(
        "[[site]]\nname = \"no-such-site\"\nfingerprint = \"sha256:{print}\"\nssh = \"{ssh}\"\n[[site.gateway]]\nname = \"gw1\"\n\
         advertise = \"login:7700\"\ninside = \"10.0.0.1:7700\"\n[[site.node]]\nname = \"n1\"\n"
    );
    SitesFile::parse(&text, "x").unwrap().sites.remove(0)
}

fn wish(place: Option<&str>) -> Wish {
    Wish { name: "no-such-site".into(), place: place.map(str::to_owned), ..Wish::default() }
}

#[test]
fn a_name_stays_with_its_place() {
    let known = site("me@login");
    let place = |wanted: Option<&str>| {
        plan::check(&wish(wanted), Some(&known)).map(|checked| checked.place).map_err(|e| e.to_string())
    };
    assert_eq!(place(None).unwrap().to_string(), "me@login");
    assert_eq!(place(Some("me@login")).unwrap().to_string(), "me@login");
    let error = place(Some("me@elsewhere")).unwrap_err();
    assert!(error.contains("is taken by the site at me@login"), "{error}");
    for name in ["", "-x", ".ssh", "a b", "a/b"] {
        assert!(plan::check(&Wish { name: name.into(), ..Wish::default() }, None).is_err(), "{name}");
    }
}

#[tokio::test]
async fn what_the_user_does_not_say_stays() {
    let (known, place) = (site("me@login"), "me@login".parse().unwrap());
    let survey =
        Survey { host: "login1".into(), port: 7701, inside: Some("10.0.0.9".parse().unwrap()), ..Survey::default() };
    let mut notes = Vec::new();
    let entry = plan::entry(&wish(None), &place, &survey, None, Some(&known), &mut notes).await.unwrap();
    assert_eq!((entry.advertise.as_deref(), entry.inside.as_str()), (Some("login:7700"), "10.0.0.1:7700"));
    assert_eq!(entry.nodes, ["n1"]);
    let moved = Wish { port: Some(9000), ..wish(None) };
    let entry = plan::entry(&moved, &place, &survey, None, Some(&known), &mut notes).await.unwrap();
    assert_eq!((entry.advertise.as_deref(), entry.inside.as_str()), (Some("login:9000"), "10.0.0.9:9000"));
    assert_eq!(entry.listen, "[::]:9000");
    let said = Wish { advertise: Some("nat.example:443".into()), inside: Some("gw".into()), ..wish(None) };
    let entry = plan::entry(&said, &place, &survey, None, None, &mut notes).await.unwrap();
    assert_eq!((entry.advertise.as_deref(), entry.inside.as_str()), (Some("nat.example:443"), "gw:7701"));
    assert_eq!(entry.nodes, ["login1"]);
    let here = plan::entry(&wish(None), &MachinePlace::Here, &survey, None, None, &mut notes).await.unwrap();
    assert_eq!(here.advertise, None);
    assert!(notes.last().unwrap().contains("--advertise"), "{notes:?}");
    for wrong in ["", "a b", "host:", "host:0", "me@host", ":1"] {
        let wrong = Wish { advertise: Some(wrong.into()), ..wish(None) };
        assert!(plan::entry(&wrong, &place, &survey, None, None, &mut notes).await.is_err(), "{wrong:?}");
    }
}

#[test]
fn everything_wrong_is_said_at_once_before_any_ssh() {
    let wish = Wish {
        name: ".x".into(),
        place: Some("me@".into()),
        nodes: Some("n[3-1]".into()),
        slurm: vec!["account=x".parse().unwrap()],
        advertise: Some("a b".into()),
        dial_out: true,
        folder: Some("relative".into()),
        programs: Some("/no/such/folder".into()),
        ..Wish::default()
    };
    let error = plan::check(&wish, None).unwrap_err().to_string();
    let lines = error.lines().collect::<Vec<_>>();
    assert_eq!(lines.len(), 8, "{error}");
    for place in
        ["`.x`", "`me@`", "n[3-1]", "--slurm", "--advertise `a b`", "--dial-out", "`relative`", "/no/such/folder"]
    {
        assert!(lines.iter().any(|line| line.contains(place)), "{place}: {error}");
    }
}

/// Another command may change a site's file between an attempt and its undoing.
#[test]
fn undoing_keeps_the_site_of_another_command() {
    let mut old = Book::of("x".as_ref(), "# mine\n").unwrap();
    let entry = |port: u16| SiteEntry {
        advertise: Some(format!("h:{port}")),
        ssh: None,
        inside: format!("h:{port}"),
        listen: types::sites::any_address(port),
        nodes: vec!["n1".into()],
        starter: crate::book::Start::Ssh,
    };
    let add = |book: &mut Book, name: &str, port| {
        book.add(name, &entry(port)).unwrap();
        book.identify(name, &Fingerprint([7; 32]), None, None).unwrap();
    };
    add(&mut old, "lyon", 1);
    let mut written = old.clone();
    add(&mut written, "kyoto", 2);
    let mut there = written.clone();
    add(&mut there, "nancy", 3);
    let (old, written) = (old.text(), written.text());
    let undo = |there: Option<&str>, old: Option<&str>| match restored(there, &written, old, "kyoto").unwrap() {
        Some(SiteRequest::WriteSites { text }) => Some(text),
        other => other.map(|request| panic!("{request:?}")),
    };
    assert_eq!(undo(Some(&written), Some(&old)), Some(Some(old.clone())));
    assert_eq!(undo(Some(&written), None), Some(None));
    assert_eq!(undo(Some(&old), Some(&old)), None, "two sites may share a file");
    let left = undo(Some(&there.text()), Some(&old)).flatten().unwrap();
    assert_eq!(SitesFile::parse(&left, "x").unwrap().names(), "lyon, nancy");
    assert!(left.starts_with("# mine\n"));
    there.remove("kyoto").unwrap();
    assert_eq!(undo(Some(&there.text()), Some(&old)), None);
}
