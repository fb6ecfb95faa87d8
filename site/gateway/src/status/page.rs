//! The gateway's page and metrics: HTTP for browsers and collectors on its own machine.
//!
//! It shows state and changes nothing. Requests are not authenticated, so the sites file accepts only loopback
//! addresses, and a request that names another host is refused: it comes from a third-party page whose name resolves to
//! this machine (DNS rebinding). The page never stops the relaying: a connection is one request with limited time and
//! memory, and the number of connections is limited. `page/` holds the files that are served.

use std::cell::RefCell;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::uri::Authority;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};
use wire::View;

use crate::door::listener;
use crate::gateway::Gateway;
use crate::status::{metrics, observe};

/// Most connections at a time; a browser has six.
const MAX_CONNECTIONS: usize = 32;
/// Time limit for a whole connection. Both ends are on one machine.
const WHOLE: Duration = Duration::from_secs(5);
/// Pause between connections: two hundred a second leave the thread enough time for relaying.
const PACE: Duration = Duration::from_millis(5);
/// Time for which a gathered view is served before it is gathered anew.
const FRESH: Duration = Duration::from_millis(200);
const MAX_HEAD: usize = 16 << 10;
const MAX_HEADERS: usize = 64;
const BACKLOG: u32 = 64;

const TEXT: &str = "text/plain; charset=utf-8";
/// Prometheus' text exposition format.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON: &str = "application/json";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Static files: path, type, content.
const FILES: [(&str, &str, &str); 7] = [
    ("/", "text/html; charset=utf-8", include_str!("page/page.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    ("/page.js", SCRIPT, include_str!("page/page.js")),
    ("/map.js", SCRIPT, include_str!("page/map.js")),
    ("/graph.js", SCRIPT, include_str!("page/graph.js")),
    ("/words.js", SCRIPT, include_str!("page/words.js")),
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];

/// Sent with every response. The content is current, comes only from here, and must not be framed by another page.
const HEADERS: [(HeaderName, &str); 5] = [
    (header::CACHE_CONTROL, "no-store"),
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Opens the page if the sites file has one for this gateway. If the port cannot be bound, the gateway logs that and
/// works without the page, because jobs matter more.
pub(crate) fn open(gateway: &Rc<Gateway>) {
    let (site, own) = gateway.sites.own.get();
    let Some(address) = gateway.sites.file.borrow().sites[site].gateways[own].page else { return };
    match listener::open(address, BACKLOG) {
        Ok(listener) => {
            tracing::info!("page at http://{address}/");
            tokio::task::spawn_local(accept(gateway.clone(), listener));
        }
        Err(error) => {
            let hint = match error.kind() {
                io::ErrorKind::AddrInUse => {
                    ": another program has this port (another gateway?); `ss -ltnp` shows which; stop it, or set \
                     `page` to another port, and restart the gateway"
                }
                io::ErrorKind::AddrNotAvailable => ": no interface of this machine has this address; correct `page`",
                io::ErrorKind::PermissionDenied => ": ports under 1024 need root; set `page` to a higher one",
                _ => "",
            };
            tracing::warn!("no page: cannot listen on {address}: {error}{hint}. Everything else works.");
        }
    }
}

/// Accepts connections forever.
async fn accept(gateway: Rc<Gateway>, listener: TcpListener) -> Infallible {
    let source = Rc::new(PageContent { gateway, gathered: RefCell::default() });
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => match places.clone().try_acquire_owned() {
                Ok(place) => {
                    let source = source.clone();
                    tokio::task::spawn_local(async move {
                        serve(source, stream, peer).await;
                        drop(place);
                    });
                }
                Err(_) => tracing::debug!(%peer, "page: connection refused: too many"),
            },
            Err(error) => tracing::debug!(%error, "page: cannot accept"),
        }
        sleep(PACE).await;
    }
}

/// Serves one connection: one request and its response.
async fn serve(source: Rc<PageContent>, stream: TcpStream, peer: SocketAddr) {
    let service = service_fn(|request| {
        let answer = answer(&source, &request);
        async { Ok::<_, Infallible>(answer) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_header_size(MAX_HEAD)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(WHOLE, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%peer, %error, "page: connection broken"),
        Err(_) => tracing::debug!(%peer, "page: connection closed: not done within {} s", WHOLE.as_secs()),
    }
}

/// The dynamic content.
struct PageContent {
    gateway: Rc<Gateway>,
    gathered: RefCell<Option<(Instant, Rc<View>)>>,
}

impl PageContent {
    /// The view, gathered at most a few times a second regardless of the number of requests.
    fn view(&self) -> Rc<View> {
        let mut gathered = self.gathered.borrow_mut();
        match &*gathered {
            Some((when, view)) if when.elapsed() < FRESH => view.clone(),
            _ => {
                let view = Rc::new(observe::view(&self.gateway));
                *gathered = Some((Instant::now(), view.clone()));
                view
            }
        }
    }
}

fn answer<B>(source: &PageContent, request: &Request<B>) -> Response<String> {
    if !names_this_machine(request.headers()) {
        let text = "This page is served to its own machine only: open http://localhost with its port.\n";
        return response(StatusCode::FORBIDDEN, TEXT, text.into());
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut refusal = response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "This page is read-only.\n".into());
        refusal.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    let path = request.uri().path();
    if let Some((_, kind, content)) = FILES.iter().find(|(of, ..)| *of == path) {
        return response(StatusCode::OK, kind, (*content).to_owned());
    }
    match path {
        "/view.json" => match serde_json::to_string(&*source.view()) {
            Ok(json) => response(StatusCode::OK, JSON, json),
            Err(error) => response(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
        },
        "/metrics" => response(StatusCode::OK, METRICS, metrics::text(&source.view())),
        _ => response(StatusCode::NOT_FOUND, TEXT, "Not found. This server has /, /view.json and /metrics.\n".into()),
    }
}

fn response(status: StatusCode, kind: &'static str, content: String) -> Response<String> {
    let mut response = Response::new(content);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Returns true if `Host` occurs exactly once and names only this machine; its port may be that of a tunnel.
fn names_this_machine(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let Ok(authority) = Authority::try_from(host.as_bytes()) else { return false };
    let name = authority.host();
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_answered() {
        let named = |hosts: &[&str]| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(header::HOST, HeaderValue::from_str(host).unwrap());
            }
            names_this_machine(&headers)
        };
        for host in ["localhost", "LOCALHOST:9", "127.0.0.1:7780", "127.9.9.9", "[::1]:7780", "[::1]"] {
            assert!(named(&[host]), "{host}");
        }
        for host in
            ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1:7780", "0.0.0.0", "a b"]
        {
            assert!(!named(&[host]), "{host}");
        }
        assert!(!named(&[]) && !named(&["localhost", "evil.example"]));
    }
}
