//! The sites file, this site's gateway and nodes, and the gateways that ssh reaches.

use std::time::Duration;

use launcher::Sites;
use tokio::time::timeout;
use types::sites::Login;
use watching::check::check;

use super::command::output;
use super::report::{Question, Report, Verdict};
use crate::Silent;
use crate::book::Book;
use crate::company::whereabouts;
use crate::here::{folders, nothing};
use crate::remedy::remedy;
use crate::status::status;

/// Time limit for all sites together to answer over ssh.
const LIMIT: Duration = Duration::from_secs(60);

pub(super) async fn examine(question: &Question, report: &mut Report) {
    let path = question.path.display();
    let sites = match &question.sites {
        None => {
            if question.variable("LANDBRIDGE_SITES").is_none_or(|path| path.is_empty()) {
                let begin = "`landbridge sites add NAME [USER@]HOST` begins one";
                report.add("sites file", Verdict::Note, format!("none at {path}: jobs run on this machine; {begin}"));
            }
            return ssh(report, &[]).await;
        }
        Some(Err(problem)) => {
            let old = question.path.with_extension("toml.old");
            let before = match old.exists() {
                true => format!("; {} is the one before", old.display()),
                false => String::new(),
            };
            report.failed("sites file", problem.to_string(), format!("correct {path}{before}"));
            return ssh(report, &[]).await;
        }
        Some(Ok(sites)) => sites,
    };
    let names: Vec<&str> = sites.file.sites.iter().map(|site| site.name.as_str()).collect();
    report.add("sites file", Verdict::Ok, format!("{path}: {}", names.join(", ")));
    report
        .section(format!("sites file {path}"), &folders::read_sites(&question.path).ok().flatten().unwrap_or_default());
    let logins: Vec<Login> = sites.file.sites.iter().filter_map(|site| site.ssh.clone()).collect();
    ssh(report, &logins).await;
    match &question.home {
        Some(home) => from_site(question, sites, home, report).await,
        None if sites.file.sites.iter().any(|site| site.ssh.is_some()) => {
            report.add("site", Verdict::Note, "no site's key is here, so jobs go to a site over ssh");
        }
        None => {
            let remedy = format!(
                "correct `key` in {path}, or type the command at a site or on a machine that reaches one by ssh"
            );
            report.failed("site", format!("no site's key can be used here: {}", sites.key_problems()), remedy);
        }
    }
    gateways(question, sites, report).await;
}

/// Runs all checks of `landbridge sites check`, from the site that this machine belongs to.
async fn from_site(question: &Question, sites: &Sites, home: &str, report: &mut Report) {
    for finding in check(sites, home, &nothing()).await {
        let part = format!("{}: {}", finding.site, finding.part);
        if finding.ok {
            report.add(part, Verdict::Ok, finding.detail);
            continue;
        }
        let is_gateway = finding.part.starts_with("gateway") || finding.part.starts_with("trunk");
        let site = sites.file.sites.iter().find(|site| site.name == finding.site).filter(|_| is_gateway);
        let remedy =
            site.map_or("`landbridge sites check` tries it again".to_owned(), |site| remedy(site, &question.path));
        report.failed(part, finding.detail, remedy);
    }
}

/// Examines the gateways of sites whose machine this is, or that ssh reaches without a prompt. A site's own machine
/// tries the others over its trunks, and need not be able to log in there.
async fn gateways(question: &Question, sites: &Sites, report: &mut Report) {
    let known = |name: &str| {
        let site = sites.file.sites.iter().find(|site| site.name == name);
        site.is_some_and(|site| matches!(whereabouts(site), Ok(Some(_))))
    };
    if !sites.file.sites.iter().any(|site| known(&site.name)) {
        return;
    }
    let again = "`landbridge sites status` asks again";
    let at_site = question.home.is_some();
    let no_answer = format!("no answer over ssh within {} s", LIMIT.as_secs());
    let asked = async { status(&Book::open(&question.path)?, false, &mut Silent).await };
    match timeout(LIMIT, asked).await {
        Err(_) if at_site => report.add("gateways", Verdict::Note, no_answer),
        Err(_) => report.failed("gateways", no_answer, again),
        Ok(Err(error)) => report.failed("gateways", error.to_string(), again),
        Ok(Ok(all)) => {
            for site in all.into_iter().filter(|site| known(&site.site)) {
                let part = format!("{}: status", site.site);
                match site.problem {
                    Some(problem) if at_site && site.gateway.is_none() => {
                        report.add(
                            part,
                            Verdict::Note,
                            format!("no login from here, which jobs do not need: {problem}"),
                        );
                    }
                    Some(problem) => report.failed(part, problem, again),
                    None => report.add(part, Verdict::Ok, format!("its gateway runs at {}", site.place)),
                }
            }
        }
    }
}

/// Examines the ssh that reaches the sites, and whether it shares connections.
async fn ssh(report: &mut Report, logins: &[Login]) {
    let Some(version) = output(&["ssh", "-V"]).await else {
        if logins.is_empty() {
            report.add("ssh", Verdict::Note, "not on PATH; `sites add` needs it");
        } else {
            report.failed(
                "ssh",
                "not on PATH, and the sites file has sites that it reaches",
                "install OpenSSH's client",
            );
        }
        return;
    };
    report.add("ssh", Verdict::Ok, &version);
    let mut text = version;
    for login in logins {
        let arguments = login.arguments();
        let words: Vec<&str> = ["ssh", "-G"].into_iter().chain(arguments.iter().map(String::as_str)).collect();
        let settings = output(&words).await.unwrap_or_else(|| "`ssh -G` fails".to_owned());
        let kept = ["hostname ", "user ", "port ", "controlmaster ", "controlpath ", "controlpersist ", "proxyjump "];
        let kept = settings.lines().filter(|line| kept.iter().any(|name| line.starts_with(name)));
        text += &format!("\n{}: {}", login.target, kept.collect::<Vec<_>>().join(", "));
    }
    report.section("ssh", &text);
}
