//! A web server: workers that were forked before there were connections, and come and go.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::running::{
    Running, are_installed, explain, explained, output, ringed, signal, succeed, until,
};
use crate::stores::is_root;
use crate::support::{Place, free_port};

/// An nginx with two workers that serves one page.
#[derive(Debug)]
struct Nginx {
    place: Place,
    page: Vec<u8>,
    port: u16,
    server: Running,
}

impl Nginx {
    fn start(name: &str) -> Self {
        let (place, port) = (Place::new(name), free_port());
        let root = place.0.join("root");
        fs::create_dir_all(root.join("logs")).expect("a directory");
        let page: Vec<u8> =
            (0..300_000_u32).map(|n| b'a' + u8::try_from(n % 23).expect("small")).collect();
        fs::write(root.join("page"), &page).expect("a file");
        let file = place.0.join("nginx.conf");
        fs::write(&file, Self::settings(&place, port)).expect("a file");
        let mut server = place.command("nginx");
        server.arg("-c").arg(&file).arg("-p").arg(&root);
        let server = Running::serve(explain(&place, &mut server), port);
        Self { place, page, port, server }
    }

    fn settings(place: &Place, port: u16) -> String {
        let user = if is_root() { "user root;" } else { "" };
        let at = place.0.display();
        format!(
            "{user} worker_processes 2; pid {at}/pid; error_log {at}/explained; daemon off;\n\
             events {{ worker_connections 256; }}\n\
             http {{ access_log off; server {{\n\
               listen 127.0.0.1:{port}; root {at}/root; sendfile on; }} }}\n"
        )
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/page", self.port)
    }

    /// Fetches the page, and compares it.
    fn fetch(&self) {
        let page = output(self.place.command("curl").args(["-s", "-f", &self.url()])).stdout;
        assert!(page == self.page, "{} bytes", page.len());
    }

    fn wrk(&self, seconds: u32) -> Command {
        let mut wrk = self.place.command("wrk");
        wrk.args(["-t1", "-c20", &format!("-d{seconds}s"), &self.url()]);
        wrk
    }

    fn workers(&self) -> Vec<u32> {
        let id = self.server.id();
        let list = PathBuf::from(format!("/proc/{id}/task/{id}/children"));
        let list = fs::read_to_string(list).expect("nginx");
        list.split_whitespace().map(|worker| worker.parse().expect("a number")).collect()
    }
}

#[test]
fn nginx_serves_files_from_several_workers() {
    if !are_installed(&["nginx", "curl"]) {
        return;
    }
    let nginx = Nginx::start("nginx");
    for _ in 0..5 {
        nginx.fetch();
    }
    if are_installed(&["wrk"]) {
        let said = succeed(&mut nginx.wrk(1));
        assert!(!said.contains("Socket errors") && !said.contains("Non-2xx"), "{said}");
        assert!(ringed(&nginx.place) > 0, "{said}");
    }
}

/// Goal: a client that asks while workers are replaced is served, and the old ones end; a worker that is
/// killed takes no more than its own connections with it.
#[test]
fn nginx_replaces_its_workers_under_load() {
    if !are_installed(&["nginx", "curl", "wrk"]) {
        return;
    }
    let nginx = Nginx::start("reload");
    // It listens before it heeds signals: a HUP would end it.
    until("there are workers", || nginx.workers().len() == 2);
    std::thread::scope(|threads| {
        let load = threads.spawn(|| succeed(&mut nginx.wrk(4)));
        for _ in 0..4 {
            let before = nginx.workers();
            nginx.server.signal("HUP");
            until("there are new workers", || {
                nginx.workers().iter().filter(|worker| !before.contains(worker)).count() == 2
            });
            for _ in 0..3 {
                nginx.fetch();
            }
            until("the old workers are gone", || {
                nginx.workers().iter().all(|worker| !before.contains(worker))
            });
        }
        let killed = nginx.workers()[0];
        signal("KILL", killed);
        until("there is another worker", || {
            let workers = nginx.workers();
            workers.len() == 2 && !workers.contains(&killed)
        });
        std::thread::sleep(Duration::from_millis(100));
        nginx.fetch();
        let said = load.join().expect("the load");
        assert!(!said.contains("Non-2xx"), "{said}");
    });
    nginx.fetch();
    let log = fs::read_to_string(explained(&nginx.place)).expect("a log");
    let is_odd = |line: &&str| {
        ["[crit]", "[emerg]", "core dumped"].iter().any(|word| line.contains(word))
            || (line.contains("exited on signal") && !line.contains("signal 9"))
    };
    assert_eq!(log.lines().find(is_odd), None);
}
