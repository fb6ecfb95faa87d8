//! Automatic restarts: the machine itself starts the gateway again, after a reboot or a crash.
//!
//! A timer of the user's systemd does this if that systemd runs without a login (lingering), else a line in the user's
//! crontab. Either runs a small script every few minutes. The script sets the environment that the gateway needs and
//! acts as `sites start` does.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use job::capture::{Captured, capture_blocking};
use types::shell::literal;

use super::error::HereError;
use super::folders::{self, Folders};

/// Variables that the gateway and its children need, if they are set.
const ENVIRONMENT: [&str; 6] =
    ["PATH", "LD_LIBRARY_PATH", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "SLURM_CONF", "LANDBRIDGE_PROVIDER"];
/// Interval between runs of the script, in minutes.
const MINUTES: u32 = 2;

/// Time limit for systemd and cron to answer.
const LIMIT: Duration = Duration::from_secs(20);

/// The program that runs the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Systemd,
    Cron,
}

/// Automatic restarts of one site's gateway.
#[derive(Debug)]
pub(crate) struct Keeping<'a> {
    folders: &'a Folders,
    site: &'a str,
}

impl<'a> Keeping<'a> {
    pub(crate) fn new(folders: &'a Folders, site: &'a str) -> Keeping<'a> {
        Keeping { folders, site }
    }

    /// Makes the machine restart the gateway from now on. Returns the mechanism, for the user.
    ///
    /// # Errors
    /// The machine offers neither mechanism, or refuses it.
    pub(crate) fn install(&self) -> Result<String, HereError> {
        let program = std::env::current_exe().map_err(HereError::Command)?;
        let mut script =
            String::from("#!/bin/sh\n# Made by `landbridge sites add --keep`; `landbridge sites remove` removes it.\n");
        for name in ENVIRONMENT {
            if let Ok(value) = std::env::var(name) {
                script += &format!("export {name}={}\n", literal(&value));
            }
        }
        let sites = self.folders.sites_file();
        script += &format!(
            "exec {} sites start --sites {} {} >/dev/null\n",
            literal(&program.display().to_string()),
            literal(&sites.display().to_string()),
            literal(self.site)
        );
        folders::make(&self.folders.state)?;
        folders::write(&self.script(), &script)?;
        let kept = match manner() {
            Some(Manner::Systemd) => self.install_timer(),
            Some(Manner::Cron) => self.install_line(),
            None => Err(HereError::Keep(
                "it has neither a user's systemd that goes on without a login (`loginctl enable-linger` may allow it) nor \
                 a crontab for you: ask the machine's administrator, or start the gateway with `landbridge sites start`"
                    .to_owned(),
            )),
        };
        if kept.is_err() {
            let _ = self.folders.remove(&self.script());
        }
        kept
    }

    /// The mechanism that could restart the gateway automatically, if none is installed. Changes nothing.
    pub(crate) fn offer(&self) -> Option<&'static str> {
        if self.script().is_file() {
            return None;
        }
        manner().map(|manner| match manner {
            Manner::Systemd => "a timer of your systemd",
            Manner::Cron => "a line in your crontab",
        })
    }

    pub(crate) fn is_installed(&self) -> bool {
        self.script().is_file()
    }

    /// Stops the machine from restarting the gateway.
    pub(crate) fn remove(&self) -> Result<(), HereError> {
        if !self.is_installed() {
            return Ok(());
        }
        if let Some(table) = crontab().filter(|table| table.lines().any(|line| self.is_line(line))) {
            let rest: Vec<&str> = table.lines().filter(|line| !self.is_line(line)).collect();
            write_crontab(&rest)?;
        }
        let [service, timer] = self.units();
        if timer.is_file() {
            let _ = systemctl(&["disable", "--now", &self.timer_name()]);
            self.folders.remove(&service)?;
            self.folders.remove(&timer)?;
            let _ = systemctl(&["daemon-reload"]);
        }
        self.folders.remove(&self.script())
    }

    fn script(&self) -> PathBuf {
        self.folders.state.join(format!("{}.keep", self.site))
    }

    fn is_line(&self, line: &str) -> bool {
        line.contains(&escaped(&self.script()))
    }

    fn install_line(&self) -> Result<String, HereError> {
        let table = crontab().unwrap_or_default();
        let line = format!("*/{MINUTES} * * * * /bin/sh '{}'", escaped(&self.script()));
        let mut lines: Vec<&str> = table.lines().filter(|line| !self.is_line(line)).collect();
        lines.push(&line);
        write_crontab(&lines)?;
        Ok(format!("a line in your crontab starts its gateway again within {MINUTES} minutes, also after a reboot"))
    }

    fn timer_name(&self) -> String {
        format!("landbridge-{}.timer", self.site)
    }

    /// The paths of the service and of the timer.
    fn units(&self) -> [PathBuf; 2] {
        let configuration = self.folders.configuration.parent().unwrap_or(Path::new("/"));
        ["service", "timer"]
            .map(|kind| configuration.join("systemd/user").join(format!("landbridge-{}.{kind}", self.site)))
    }

    fn install_timer(&self) -> Result<String, HereError> {
        let [service, timer] = self.units();
        let script = self.script().display().to_string().replace('%', "%%");
        // KillMode=process: the gateway that the script starts outlives the script.
        let text = format!(
            "[Unit]\nDescription=Landbridge gateway of site {}\n[Service]\nType=oneshot\nKillMode=process\n\
             ExecStart=/bin/sh \"{script}\"\n",
            self.site
        );
        folders::write(&service, &text)?;
        let text = format!(
            "[Unit]\nDescription=Landbridge gateway of site {}\n[Timer]\nOnActiveSec=1min\nOnUnitInactiveSec={MINUTES}min\n\
             [Install]\nWantedBy=timers.target\n",
            self.site
        );
        folders::write(&timer, &text)?;
        systemctl(&["daemon-reload"]).and_then(|()| systemctl(&["enable", "--now", &self.timer_name()]))?;
        Ok(format!(
            "the timer {} of your systemd starts its gateway again within {MINUTES} minutes, also after a reboot",
            self.timer_name()
        ))
    }
}

/// The folder of the release that a script of [`Keeping::install`] starts.
pub(crate) fn release_of(script: &str) -> Option<PathBuf> {
    let line = script.lines().find_map(|line| line.strip_prefix("exec "))?;
    let program = line.split_once(" sites start ")?.0.trim_matches('\'').replace(r"'\''", "'");
    Path::new(&program).parent().map(Path::to_owned)
}

/// A path for a crontab, in which a percent sign would end the command.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace('%', "\\%")
}

/// The mechanism that this machine offers, if any.
fn manner() -> Option<Manner> {
    if lingers() && systemctl(&["show-environment"]).is_ok() {
        return Some(Manner::Systemd);
    }
    crontab().map(|_| Manner::Cron)
}

/// True if the user's systemd keeps running when nobody is logged in.
fn lingers() -> bool {
    let user = rustix::process::getuid().as_raw().to_string();
    let shown = run(Command::new("loginctl").args(["show-user", "--value", "--property=Linger", &user]), None);
    shown.is_some_and(|shown| shown.status.success() && shown.stdout.starts_with(b"yes"))
}

fn systemctl(words: &[&str]) -> Result<(), HereError> {
    let done = run(Command::new("systemctl").arg("--user").args(words), None);
    match done {
        Some(done) if done.status.success() => Ok(()),
        Some(done) => {
            Err(HereError::Keep(format!("`systemctl --user {}`: {}", words.join(" "), done.stderr.last_lines())))
        }
        None => Err(HereError::Keep("the command systemctl cannot be run".to_owned())),
    }
}

/// The user's crontab. `None`: the user may have none here.
fn crontab() -> Option<String> {
    let shown = run(Command::new("crontab").arg("-l"), None)?;
    if shown.status.success() {
        return Some(shown.text());
    }
    // Every cron reports an empty crontab as an error with this text; the error for a forbidden one has another text.
    shown.stderr.text().contains("no crontab").then(String::new)
}

fn write_crontab(lines: &[&str]) -> Result<(), HereError> {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    match run(Command::new("crontab").arg("-"), Some(&text)) {
        Some(done) if done.status.success() => Ok(()),
        Some(done) => Err(HereError::Keep(format!("`crontab -`: {}", done.stderr.last_lines()))),
        None => Err(HereError::Keep("the command crontab cannot be run".to_owned())),
    }
}

fn run(command: &mut Command, input: Option<&str>) -> Option<Captured> {
    capture_blocking(command, input.unwrap_or_default().as_bytes(), LIMIT).ok()
}
