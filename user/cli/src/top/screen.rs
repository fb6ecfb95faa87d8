//! The live view: the last round, the user's choices, and their drawing. Independent of the terminal.

use std::collections::HashMap;
use std::time::Duration;

use ratatui::Frame;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use watching::watch::Round;

use super::history::History;
use super::tables::{Choice, Mood, TrunkName, both, tables, trunk_rates};

const KEYS: &str = " q quit   l links   s by rate   ↑ ↓ scroll   ? help";
/// Before each line of a table.
const INDENT: &str = "  ";
const HELP: &str = "\
q  Esc  Ctrl-C      end
l                   show or hide the links of trunks: one TCP connection each
s                   sort by rate, or by the order of the sites file
↑ ↓  k j            scroll; Page Up, Page Down, Home, End too
?                   this page, or back

gateways   those of your own site. memory: used by frames in flight, of the limit in the
           sites file; Mbit/s, frames/s: rate relayed; refused: connections that were
           not admitted; dropped: connections closed for a protocol violation
trunks     from one of your gateways to one of another site. RTT: least smoothed round trip
           of its links; resent: TCP segments retransmitted by links that are up; queued:
           bytes waiting here; lost: number of lost links. The line shows the last minute,
           out and in together, scaled to its highest value
between    the rate of the path from one site to another, and its round trip without queueing;
sites      passive: seen on the traffic of jobs; active: by a transfer for this purpose
jobs       those that are open here, over all your gateways. members: ranks, agents and the
           launcher; window: bytes that each may initially have in flight; local:
           between members of your site, through a gateway

Bytes are bytes of frames, headers included. – : nothing to compare with yet.";

#[derive(Debug)]
pub(super) struct Screen {
    site: String,
    interval: Duration,
    round: Option<Round>,
    histories: HashMap<TrunkName, History>,
    choice: Choice,
    help: bool,
    /// Lines scrolled past the top.
    scroll: usize,
    /// Lines that fitted into the last drawing.
    page: usize,
}

impl Screen {
    /// A screen for a site that is polled each `interval`.
    pub(super) fn new(site: &str, interval: Duration) -> Screen {
        Screen {
            site: site.to_owned(),
            interval,
            round: None,
            histories: HashMap::new(),
            choice: Choice::default(),
            help: false,
            scroll: 0,
            page: 1,
        }
    }

    /// Takes a new round.
    pub(super) fn take(&mut self, round: Round) {
        for history in self.histories.values_mut() {
            history.push(None);
        }
        for (name, _, rates) in trunk_rates(&round) {
            let carried = rates.and_then(|rates| both(rates.sent_mbit_s, rates.received_mbit_s));
            match self.histories.get_mut(&name) {
                Some(history) => history.replace(carried),
                None => {
                    let mut history = History::new(self.interval);
                    history.push(carried);
                    self.histories.insert(name, history);
                }
            }
        }
        self.round = Some(round);
    }

    /// Handles the user's input; returns whether to quit.
    pub(super) fn event(&mut self, event: &Event) -> bool {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.key(*key),
            _ => false,
        }
    }

    fn key(&mut self, key: KeyEvent) -> bool {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return true,
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('l') => self.choice.links = !self.choice.links,
            KeyCode::Char('s') => self.choice.by_rate = !self.choice.by_rate,
            KeyCode::Char('?' | 'h') => (self.help, self.scroll) = (!self.help, 0),
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.scroll += 1,
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(self.page),
            KeyCode::PageDown | KeyCode::Char(' ') => self.scroll += self.page,
            KeyCode::Home | KeyCode::Char('g') => self.scroll = 0,
            KeyCode::End | KeyCode::Char('G') => self.scroll = usize::MAX / 2,
            _ => {}
        }
        false
    }

    /// Draws everything.
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let parts = [Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)];
        let [top, middle, bottom] = Layout::vertical(parts).areas(frame.area());
        let bar = Style::new().add_modifier(Modifier::REVERSED);
        frame.render_widget(Paragraph::new(self.headline()).style(bar), top);
        let lines = self.lines(middle.width.saturating_sub(INDENT.len() as u16));
        // Never beyond the last line, so that one key press is enough to come back.
        self.page = usize::from(middle.height).max(1);
        self.scroll = self.scroll.min(lines.len().saturating_sub(usize::from(middle.height)));
        let shown: Vec<Line<'_>> = lines.into_iter().skip(self.scroll).take(usize::from(middle.height)).collect();
        frame.render_widget(Paragraph::new(shown), middle);
        frame.render_widget(Paragraph::new(KEYS).style(bar), bottom);
    }

    fn headline(&self) -> String {
        let every = self.interval.as_secs_f64();
        let answered = match &self.round {
            None => "looking …".to_owned(),
            Some(round) => {
                let there = round.gateways.iter().filter(|look| look.view.is_some()).count();
                format!("{there} of {} gateways answer", round.gateways.len())
            }
        };
        let held = self.round.as_ref().map_or(0, |round| {
            let views = round.gateways.iter().filter_map(|look| look.view.as_ref());
            views.map(|view| view.memory.held).fold(0, u64::saturating_add)
        });
        format!(
            " landbridge top   site {}   {answered}   {} held   every {every} s",
            self.site,
            crate::quantity::binary(held)
        )
    }

    fn lines(&self, width: u16) -> Vec<Line<'static>> {
        if self.help {
            return HELP.lines().map(|line| Line::raw(format!(" {line}"))).collect();
        }
        let Some(round) = &self.round else { return Vec::new() };
        let past = |name: &TrunkName| self.histories.get(name).map_or_else(String::new, History::line);
        let mut lines = Vec::new();
        for table in tables(round, self.choice, Some(&past)) {
            lines.push(Line::raw(""));
            let title = format!(" {}", table.title);
            lines.push(Line::from(Span::styled(title, Style::new().fg(Color::Cyan).add_modifier(Modifier::BOLD))));
            let styled =
                |(mood, line): (Mood, String)| Line::from(Span::styled(format!("{INDENT}{line}"), style(mood)));
            lines.extend(table.lines(Some(width.into())).into_iter().map(styled));
        }
        lines
    }
}

fn style(mood: Mood) -> Style {
    match mood {
        Mood::Head => Style::new().add_modifier(Modifier::DIM),
        Mood::Fine => Style::new(),
        Mood::Bad => Style::new().fg(Color::Red),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::tables::tests::round;
    use super::*;

    fn drawn(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect()
    }

    fn press(screen: &mut Screen, code: KeyCode) -> bool {
        screen.event(&Event::Key(KeyEvent::new(code, KeyModifiers::NONE)))
    }

    fn screen() -> Screen {
        let mut screen = Screen::new("a", Duration::from_secs(1));
        screen.take(round());
        screen
    }

    #[test]
    fn before_the_first_answer_it_says_that_it_looks() {
        let lines = drawn(&mut Screen::new("a", Duration::from_millis(500)), 80, 5);
        assert!(lines[0].contains("site a   looking …") && lines[0].contains("every 0.5 s"), "{lines:?}");
        assert_eq!(lines[4], KEYS);
    }

    #[test]
    fn gateways_trunks_and_jobs_are_drawn() {
        let text = drawn(&mut screen(), 120, 40).join("\n");
        assert!(text.contains("site a   2 of 3 gateways answer   64.0 MiB held"), "{text}");
        for part in ["\n gateways\n", "\n trunks\n", "\n jobs\n", "gw3      no answer", "last minute", "000000ab", "█"]
        {
            assert!(text.contains(part), "`{part}` in\n{text}");
        }
        assert!(!text.contains("192.0.2.7"), "no links unless asked for\n{text}");
    }

    #[test]
    fn keys_choose_what_is_shown() {
        let mut screen = screen();
        assert!(!press(&mut screen, KeyCode::Char('l')));
        assert!(drawn(&mut screen, 120, 40).join("\n").contains("192.0.2.7:7701"));
        press(&mut screen, KeyCode::Char('?'));
        assert!(drawn(&mut screen, 120, 40).join("\n").contains("this page, or back"));
        press(&mut screen, KeyCode::Char('?'));
        press(&mut screen, KeyCode::Char('s'));
        let text = drawn(&mut screen, 120, 40).join("\n");
        assert!(text.find("gw2   b/gw1").unwrap() < text.find("gw1   b/gw1").unwrap(), "{text}");
        for (code, modifiers) in [
            (KeyCode::Char('q'), KeyModifiers::NONE),
            (KeyCode::Esc, KeyModifiers::NONE),
            (KeyCode::Char('c'), KeyModifiers::CONTROL),
        ] {
            assert!(screen.event(&Event::Key(KeyEvent::new(code, modifiers))));
        }
        assert!(!press(&mut screen, KeyCode::Char('c')) && !screen.event(&Event::Resize(1, 1)));
    }

    #[test]
    fn scrolling_ends_with_the_last_line() {
        let mut screen = screen();
        let first = drawn(&mut screen, 100, 8);
        press(&mut screen, KeyCode::Char('j'));
        let second = drawn(&mut screen, 100, 8);
        assert_eq!(second[1..6], first[2..7]);
        press(&mut screen, KeyCode::End);
        assert!(drawn(&mut screen, 100, 8)[6].contains("000000ab"));
        (0..100).for_each(|_| assert!(!press(&mut screen, KeyCode::Down)));
        let end = drawn(&mut screen, 100, 8);
        press(&mut screen, KeyCode::Up);
        assert_eq!(drawn(&mut screen, 100, 8)[2..7], end[1..6]);
        press(&mut screen, KeyCode::Home);
        assert_eq!(drawn(&mut screen, 100, 8), first);
    }

    #[test]
    fn columns_that_do_not_fit_go_below() {
        let mut whole = screen();
        press(&mut whole, KeyCode::Char('l'));
        let words = |lines: Vec<String>| -> Vec<String> {
            let mut words: Vec<String> = lines.join(" ").split_whitespace().map(str::to_owned).collect();
            words.sort();
            words.dedup();
            words
        };
        let wide = words(drawn(&mut whole, 250, 90)[1..89].to_vec());
        for width in [80, 100] {
            let lines = drawn(&mut whole, width, 90)[1..89].to_vec();
            let narrow = words(lines);
            let missing: Vec<_> = wide.iter().filter(|word| !narrow.contains(word)).collect();
            assert!(missing.is_empty(), "{width}: {missing:?}");
        }
    }

    #[test]
    fn no_size_is_too_small() {
        for (width, height) in [(1, 1), (3, 2), (20, 3), (300, 100)] {
            drawn(&mut screen(), width, height);
        }
    }

    #[test]
    fn the_last_minute_moves_on_while_a_gateway_does_not_answer() {
        let mut screen = screen();
        let name: TrunkName = ("gw1".into(), "b".into(), "gw1".into());
        let mut gone = round();
        gone.gateways.iter_mut().for_each(|look| (look.view, look.rates) = (None, None));
        assert_eq!(screen.histories[&name].line().trim(), "█");
        (0..60).for_each(|_| screen.take(gone.clone()));
        assert_eq!(screen.histories[&name].line().trim(), "");
    }
}
