//! Chromium, driven over its DevTools protocol: JSON messages that end in a zero byte, through two pipes.
//!
//! ```text
//! call ─stdin─► descriptor 3 of Chromium      descriptor 4 ─stdout─► answers and events
//! ```

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Time for something to come about on the page. Long: the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// A key: its name, the code that the page sees, and what it types.
#[derive(Clone, Copy)]
pub(crate) struct Key(pub(crate) &'static str, pub(crate) u32, pub(crate) &'static str);

pub(crate) const ENTER: Key = Key("Enter", 13, "\r");
pub(crate) const ESCAPE: Key = Key("Escape", 27, "");
pub(crate) const TAB: Key = Key("Tab", 9, "");

/// One window of a browser without a display.
pub(crate) struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: Option<String>,
    calls: u64,
    /// What the page complained about: exceptions, errors, violations of its policy.
    complaints: Vec<String>,
}

impl Browser {
    /// Starts Chromium with a profile of its own; `None` if there is no Chromium.
    pub(crate) fn start(profile: &Path) -> Option<Browser> {
        let version = Command::new("chromium").arg("--version").output();
        version.ok().filter(|output| output.status.success())?;
        let mut child = Command::new("sh")
            .args(["-c", "exec chromium \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null", "sh"])
            // A test may run as root, for whom there is no sandbox; the only page is ours.
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
            .args(["--remote-debugging-pipe", "--disable-background-networking", "--disable-component-update"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh starts");
        let (to, from) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let from = BufReader::new(from);
        let mut browser = Browser { child, to, from, session: None, calls: 0, complaints: vec![] };
        let page = browser.first_page();
        let attached = browser.call("Target.attachToTarget", json!({"targetId": page, "flatten": true}));
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// The page that it opens by itself, which may be a moment after it listens.
    fn first_page(&mut self) -> Value {
        let start = Instant::now();
        loop {
            let targets = self.call("Target.getTargets", json!({}));
            let all = targets["targetInfos"].as_array().expect("targets");
            if let Some(page) = all.iter().find(|t| t["type"] == "page") {
                return page["targetId"].clone();
            }
            assert!(start.elapsed() < PATIENCE, "it opens no page: {targets}");
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Calls a method of the protocol and gives its result.
    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.ask(method, parameters).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// The same, or the error.
    fn ask(&mut self, method: &str, parameters: Value) -> Result<Value, Value> {
        self.calls += 1;
        let mut message = json!({"id": self.calls, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.to.write_all(message.to_string().as_bytes()).and_then(|()| self.to.write_all(&[0])).expect("it listens");
        loop {
            let mut bytes = vec![];
            self.from.read_until(0, &mut bytes).expect("it speaks");
            assert_eq!(bytes.pop(), Some(0), "Chromium has ended");
            let mut answer: Value = serde_json::from_slice(&bytes).expect("JSON");
            if answer["id"] == self.calls {
                let error = answer["error"].take();
                return if error.is_null() { Ok(answer["result"].take()) } else { Err(error) };
            }
            self.note(&answer);
        }
    }

    /// Keeps what an event complains about.
    fn note(&mut self, event: &Value) {
        let parameters = &event["params"];
        let bad = |level: &Value| level == "error" || level == "warning";
        match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.complaints.push(parameters["exceptionDetails"].to_string()),
            Some("Runtime.consoleAPICalled") if bad(&parameters["type"]) => {
                self.complaints.push(parameters.to_string())
            }
            Some("Log.entryAdded") if bad(&parameters["entry"]["level"]) => {
                self.complaints.push(parameters["entry"].to_string());
            }
            _ => {}
        }
    }

    /// What the page has complained about since the last call.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        // Events come before the answer to a later call.
        self.run("1");
        std::mem::take(&mut self.complaints)
    }

    /// The value of an expression in the page, or what is wrong with it.
    fn evaluate(&mut self, expression: &str) -> Result<Value, Value> {
        let parameters = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let mut result = self.ask("Runtime.evaluate", parameters)?;
        let exception = result["exceptionDetails"].take();
        if exception.is_null() { Ok(result["result"]["value"].take()) } else { Err(exception) }
    }

    /// The value of an expression in the page.
    pub(crate) fn run(&mut self, expression: &str) -> Value {
        self.evaluate(expression).unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    /// Waits until an expression, or what it promises, holds. While a page comes or goes it may be an error.
    pub(crate) fn wait(&mut self, expression: &str) {
        let start = Instant::now();
        loop {
            let holds = self.evaluate(&format!("(async () => Boolean(await ({expression})))()"));
            if holds.as_ref().is_ok_and(|holds| holds == true) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "never: {expression}\n{holds:?}\n{:?}", self.complaints);
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Opens a page, and waits until it is there in place of the last one.
    pub(crate) fn open(&mut self, url: &str) {
        self.turn("Page.navigate", json!({"url": url}));
    }

    /// Opens the same page anew.
    pub(crate) fn reload(&mut self) {
        self.turn("Page.reload", json!({}));
    }

    fn turn(&mut self, method: &str, parameters: Value) {
        self.run("window.isLast = true");
        self.call(method, parameters);
        self.wait("!window.isLast && document.readyState === 'complete'");
    }

    /// Runs a script in all pages from now on, before theirs.
    pub(crate) fn prepare(&mut self, script: &str) {
        self.call("Page.addScriptToEvaluateOnNewDocument", json!({"source": script}));
    }

    pub(crate) fn size(&mut self, width: u32, height: u32, phone: bool) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone});
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Whether the system likes it dark.
    pub(crate) fn dark(&mut self, dark: bool) {
        let value = if dark { "dark" } else { "light" };
        let features = json!([{"name": "prefers-color-scheme", "value": value}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// Types a text where the focus is.
    pub(crate) fn text(&mut self, text: &str) {
        self.call("Input.insertText", json!({"text": text}));
    }

    pub(crate) fn press(&mut self, Key(name, code, text): Key) {
        let mut down = json!({"type": "keyDown", "key": name, "code": name, "windowsVirtualKeyCode": code});
        if !text.is_empty() {
            down["text"] = text.into();
        }
        self.call("Input.dispatchKeyEvent", down);
        let up = json!({"type": "keyUp", "key": name, "code": name, "windowsVirtualKeyCode": code});
        self.call("Input.dispatchKeyEvent", up);
    }

    /// A picture of the window, as a PNG.
    pub(crate) fn picture(&mut self, file: &Path) {
        let picture = self.call("Page.captureScreenshot", json!({"format": "png"}));
        std::fs::write(file, base64(picture["data"].as_str().expect("base64"))).expect("written");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The bytes of a base64 text.
fn base64(text: &str) -> Vec<u8> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0u32, 0);
    for digit in text.bytes().filter_map(|c| ALPHABET.iter().position(|a| *a == c)) {
        (bits, count) = (bits << 6 | digit as u32, count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
