//! Headless Chromium, driven through its debugging pipe with JSON messages, each terminated by a NUL byte.
//!
//! Chromium takes far longer to start than to open a page, so each process is kept for the next test. Each page has its
//! own browser context, which acts like a new profile: pages share no state.

use memhook_tests::programs::installed;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Processes without a page.
static IDLE: Mutex<Vec<Process>> = Mutex::new(Vec::new());

/// A Chromium process. It exits when its pipe is closed, at the latest when the tests end.
struct Process {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Directory of the process's files; removed after it exits.
    profile: PathBuf,
    next: u64,
}

impl Process {
    fn start() -> Process {
        static PROCESSES: AtomicUsize = AtomicUsize::new(0);
        let number = PROCESSES.fetch_add(1, Ordering::Relaxed);
        let name = format!("memhook-browser-{}-{number}", std::process::id());
        let profile = std::env::temp_dir().join(name);
        // The pipe uses descriptors 3 and 4. The sandbox does not work for root.
        let mut child = Command::new("sh")
            .arg("-c")
            .arg("browser=$1; shift; \"$browser\" --user-data-dir=\"$0\" \"$@\" 3<&0 4>&1; rm -rf \"$0\"")
            .arg(&profile)
            .arg(installed("chromium"))
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--remote-debugging-pipe",
            ])
            .args([
                "--disable-background-networking",
                "--no-first-run",
                "--disable-dev-shm-usage",
            ])
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("sh: {e}"));
        let (input, output) = (child.stdin.take(), child.stdout.take());
        std::thread::spawn(move || child.wait());
        Process {
            input: input.expect("piped"),
            output: BufReader::new(output.expect("piped")),
            profile,
            next: 0,
        }
    }

    /// Sends a message. `event` receives all messages that arrive before the response.
    fn call(&mut self, mut message: Value, mut event: impl FnMut(&Value)) -> Value {
        self.next += 1;
        let id = json!(self.next);
        message["id"] = id.clone();
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.input.write_all(&bytes).expect("the browser listens");
        loop {
            let mut line = Vec::new();
            self.output
                .read_until(0, &mut line)
                .expect("the browser speaks");
            assert_eq!(line.pop(), Some(0), "chromium has ended");
            let mut answer: Value = serde_json::from_slice(&line).expect("JSON");
            if answer["id"] == id {
                assert!(answer["error"].is_null(), "{message}: {answer}");
                return answer["result"].take();
            }
            event(&answer);
        }
    }
}

/// A browser with one page.
pub struct Browser {
    /// Process of the browser; `None` after closing.
    process: Option<Process>,
    context: Value,
    session: Value,
    /// Script errors, console errors, and blocked requests to other machines.
    pub complaints: Vec<String>,
}

impl Browser {
    /// Opens a file in a window of the given size and waits until the expression `ready` is true.
    pub fn open(page: &Path, width: u32, height: u32, ready: &str) -> Browser {
        Browser::open_at(page, "", (width, height), ready)
    }

    /// Opens a file at a fragment of its address.
    pub fn open_at(
        page: &Path,
        fragment: &str,
        (width, height): (u32, u32),
        ready: &str,
    ) -> Browser {
        let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut process = idle.unwrap_or_else(Process::start);
        let mut ask = |method: &str, parameters: Value| {
            let message = json!({ "method": method, "params": parameters });
            process.call(message, |_| {})
        };
        let context = ask("Target.createBrowserContext", json!({}))["browserContextId"].take();
        let create = json!({ "url": "about:blank", "browserContextId": context });
        let target = ask("Target.createTarget", create)["targetId"].take();
        let attach = json!({ "targetId": target, "flatten": true });
        let session = ask("Target.attachToTarget", attach)["sessionId"].take();
        let mut browser = Browser {
            process: Some(process),
            context,
            session,
            complaints: Vec::new(),
        };
        for domain in ["Runtime", "Log", "Page", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.resize(width, height);
        let url = format!("file://{}{fragment}", page.display());
        browser.call("Page.navigate", json!({ "url": url }));
        browser.wait(ready);
        browser
    }

    /// Calls a method of the protocol, and returns the result.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        let message = json!({ "method": method, "params": parameters, "sessionId": self.session });
        let mut process = self.process.take().expect("it is open");
        let result = process.call(message, |event| self.note(event));
        self.process = Some(process);
        result
    }

    /// Resizes the window.
    pub fn resize(&mut self, width: u32, height: u32) {
        let metrics =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        self.settle();
    }

    fn note(&mut self, event: &Value) {
        // The previous page may still send events.
        if event["sessionId"] != self.session {
            return;
        }
        let is_bad = match event["method"].as_str() {
            Some("Runtime.exceptionThrown" | "Log.entryAdded") => true,
            Some("Runtime.consoleAPICalled") => event["params"]["type"] == "error",
            Some("Network.requestWillBeSent") => {
                let url = event["params"]["request"]["url"]
                    .as_str()
                    .unwrap_or_default();
                !["file:", "data:", "about:", "blob:"]
                    .iter()
                    .any(|scheme| url.starts_with(scheme))
            }
            _ => false,
        };
        if is_bad {
            self.complaints.push(event.to_string());
        }
    }

    /// Returns the value of an expression in the page.
    pub fn value(&mut self, expression: &str) -> Value {
        let parameters =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", parameters);
        assert!(
            result["exceptionDetails"].is_null(),
            "{expression}: {result}"
        );
        result["result"]["value"].clone()
    }

    /// Returns the value of an expression, as text.
    pub fn text_of(&mut self, expression: &str) -> String {
        let value = self.value(expression);
        let text = value.as_str().map(str::to_owned);
        text.unwrap_or_else(|| panic!("{expression} is {value}"))
    }

    /// Returns the text of an element.
    pub fn text(&mut self, selector: &str) -> String {
        self.text_of(&format!("document.querySelector({selector:?}).textContent"))
    }

    /// Waits until an expression is true. If it never becomes true, the test's own timeout ends the wait.
    pub fn wait(&mut self, expression: &str) {
        for _ in 0..4800 {
            if self.value(expression) == json!(true) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let text = self.value("document.body.innerText");
        panic!("never {expression}; {:?}; {text}", self.complaints);
    }

    /// Waits until the page has drawn its changes.
    pub fn settle(&mut self) {
        let frame = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))";
        self.value(frame);
    }

    /// Drags the mouse with the button held. Clicks if the start and end are the same.
    pub fn drag(&mut self, from: (f64, f64), to: (f64, f64)) {
        let event = |kind: &str, at: (f64, f64), buttons: u32| json!({ "type": kind, "x": at.0, "y": at.1, "button": "left", "buttons": buttons, "clickCount": 1 });
        let mut events = vec![event("mouseMoved", from, 0), event("mousePressed", from, 1)];
        if from != to {
            let middle = ((from.0 + to.0) / 2.0, (from.1 + to.1) / 2.0);
            events.extend([event("mouseMoved", middle, 1), event("mouseMoved", to, 1)]);
        }
        events.push(event("mouseReleased", to, 0));
        for event in events {
            self.call("Input.dispatchMouseEvent", event);
        }
        self.settle();
    }

    /// Clicks on the middle of an element.
    pub fn click(&mut self, selector: &str) {
        let at = self.middle_of(selector);
        self.drag(at, at);
    }

    /// Returns the middle of an element, in pixels.
    pub fn middle_of(&mut self, selector: &str) -> (f64, f64) {
        let expression = format!(
            "(() => {{ const r = document.querySelector({selector:?}).getBoundingClientRect(); \
             return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
        );
        let at = self.value(&expression);
        let number = |i: usize| at[i].as_f64().expect("a number");
        (number(0), number(1))
    }

    /// Types a text at the focus.
    pub fn type_text(&mut self, text: &str) {
        for key in text.chars() {
            self.key(&key.to_string());
        }
    }

    /// Presses a key.
    pub fn key(&mut self, key: &str) {
        // The default actions of these keys (moving the focus, pressing a button) depend on the key code.
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            _ => 0,
        };
        let text = match key {
            "Enter" => "\r",
            _ if key.chars().count() == 1 => key,
            _ => "",
        };
        let event = |kind: &str| json!({ "type": kind, "key": key, "windowsVirtualKeyCode": code });
        let mut down = event("keyDown");
        down["text"] = json!(text);
        self.call("Input.dispatchKeyEvent", down);
        self.call("Input.dispatchKeyEvent", event("keyUp"));
        self.settle();
    }

    /// Returns the file that a click on an element downloads.
    pub fn download(&mut self, selector: &str) -> String {
        let process = self.process.as_ref().expect("it is open");
        let session = self.session.as_str().expect("a name");
        let directory = process.profile.join(session);
        std::fs::create_dir_all(&directory).expect("a directory");
        let behavior = json!({ "behavior": "allow", "downloadPath": directory });
        self.call("Page.setDownloadBehavior", behavior);
        self.click(selector);
        // Until the download is done, the file has another name.
        let file = || {
            let mut files = std::fs::read_dir(&directory)
                .expect("the directory")
                .flatten();
            files.find_map(|entry| {
                let is_done = |path: &std::path::PathBuf| {
                    let saved = ["csv", "svg", "folded"];
                    path.extension()
                        .is_some_and(|e| saved.iter().any(|s| e == *s))
                };
                Some(entry.path()).filter(is_done)
            })
        };
        for _ in 0..4800 {
            if let Some(path) = file() {
                let text = std::fs::read_to_string(&path).expect("the download");
                // On a slow machine, the file may appear under its name before it has contents.
                if !text.is_empty() {
                    std::fs::remove_file(path).expect("the download");
                    return text;
                }
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        panic!("nothing was downloaded");
    }

    /// Saves a screenshot in the directory `MEMHOOK_PICTURES`, for manual inspection.
    pub fn picture(&mut self, name: &str) {
        use base64::{Engine, engine::general_purpose::STANDARD};
        let Some(directory) = std::env::var_os("MEMHOOK_PICTURES") else {
            return;
        };
        let result = self.call("Page.captureScreenshot", json!({}));
        let bytes = STANDARD
            .decode(result["data"].as_str().expect("a picture"))
            .expect("base64");
        std::fs::write(Path::new(&directory).join(format!("{name}.png")), bytes)
            .expect("the directory is there");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // A process in which a test has failed must not be reused by another test.
        if std::thread::panicking() {
            return;
        }
        if let Some(mut process) = self.process.take() {
            let parameters = json!({ "browserContextId": self.context });
            let close = json!({ "method": "Target.disposeBrowserContext", "params": parameters });
            let closing = AssertUnwindSafe(|| process.call(close, |_| {}));
            if catch_unwind(closing).is_ok() {
                let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
                idle.push(process);
            }
        }
    }
}
