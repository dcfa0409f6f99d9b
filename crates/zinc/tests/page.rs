//! The page that `zinc serve` gives browsers, in Chromium, with a real model: it streams, stops, keeps and shows what it
//! should, runs nothing that a text says, and has no complaint. Pictures go to `target/zinc-test/screenshots`.

mod browser;
mod program;
mod served;

use browser::*;
use program::*;
use serde_json::json;
use served::Served;
use std::path::{Path, PathBuf};

/// What could be code, in a text of the user's.
const ATTACK: &str = "Say <img src=x onerror=\"window.pwned=1\"><script>window.pwned=1</script>";

/// What a model might write: everything that is shown, and what must not run.
const WRITTEN: &str = r#"# Sorting

Use `sorted`, which is **stable** and _fast_; see [the docs](https://docs.python.org/3/howto/sorting.html).

```python
def by_length(words):
    return sorted(words, key=len, reverse=True)  # a line that is much too long for the window of a phone, so it scrolls
```

1. First
2. Second
   - nested *item*
   - another

> Premature optimisation is the root of all evil.

| Algorithm | Worst | Stable |
|:--|--:|:-:|
| Merge sort | n log n | yes |
| Quick sort | n² | no |

- [x] done

<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>
[bad](javascript:window.pwned=1) ![bad](data:text/html,x) [bad](vbscript:x "t") <javascript:x> \<b>

    <iframe srcdoc="<script>parent.pwned=1</script>"></iframe>
"#;

/// Makes requests for answers that have as many tokens as are allowed, and are the same each time: a small model may end one
/// that is meant to be long at its third token.
const AT_LENGTH: &str = "{
    const ask = window.fetch;
    const longer = (body) => JSON.stringify({ ...JSON.parse(body), ignore_eos: true, temperature: 0 });
    window.fetch = (url, more) => ask(url, more?.body ? { ...more, body: longer(more.body) } : more);
}";

/// Folder for pictures, and the model, if it has been set up.
fn needs() -> Result<(PathBuf, String), &'static str> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/zinc-test");
    let model = folder.join("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    if !model.exists() {
        return Err("SmolLM2-135M-Instruct.Q4_1.gguf absent (cargo xtask setup)");
    }
    let pictures = folder.join("screenshots");
    std::fs::create_dir_all(&pictures).expect("a folder");
    Ok((pictures, model.display().to_string()))
}

/// The last answer is there and nothing is on its way.
const ANSWERED: &str =
    "document.querySelector('article.answer .body')?.textContent && !document.querySelector('.busy')";

struct Page {
    browser: Browser,
    pictures: PathBuf,
}

impl Page {
    fn picture(&mut self, name: &str) {
        let file = self.pictures.join(format!("{name}.png"));
        self.browser.picture(&file);
    }

    fn is(&mut self, expression: &str) -> bool {
        self.browser.run(&format!("Boolean({expression})")) == true
    }

    /// Limits the tokens of answers, as the settings do.
    fn allow(&mut self, tokens: Option<u32>) {
        self.browser.run("document.getElementById('open-settings').click()");
        self.browser.run(&format!(
            "{{ const f = document.getElementById('s-max_tokens'); f.value = '{}'; f.dispatchEvent(new Event('change')) }}",
            tokens.map_or(String::new(), |n| n.to_string())
        ));
        self.browser.press(ESCAPE);
        self.browser.wait("!document.getElementById('settings').open && document.activeElement.id === 'input'");
    }

    fn count(&mut self, selector: &str) -> u64 {
        let count = self.browser.run(&format!("document.querySelectorAll({selector:?}).length"));
        count.as_u64().expect("a number")
    }

    /// A chat by keyboard alone: the focus is where one writes.
    fn chats(&mut self) {
        assert!(self.is("document.activeElement.id === 'input'"), "the focus is where one writes");
        self.allow(Some(40));
        self.browser.text(ATTACK);
        self.browser.press(ENTER);
        // On its way, most likely; a browser that is slow has it all at once.
        self.browser.wait("document.querySelector('article.answer .body')?.textContent");
        self.picture("1-streaming");
        self.browser.wait(ANSWERED);
        let shown = self.browser.run("document.querySelector('article.user .body').textContent");
        assert_eq!(shown, ATTACK, "a text stays a text");
        assert!(self.is("/\\d+ tokens/.test(document.querySelector('.note').textContent)"));
        self.browser.wait(
            "/ tokens\\/s · \\d+ running · \\d+ waiting · KV \\d+ %/.test(document.getElementById('live').textContent)",
        );
        self.picture("2-answered");
    }

    /// Escape stops an answer that would be long; the server has nothing left of it.
    fn stops(&mut self, served: &Served) {
        self.allow(None);
        self.browser.text("Count from one to five hundred in words, one number a line.");
        self.browser.press(ENTER);
        self.browser.wait("document.querySelector('article.busy .body')?.textContent.length > 3");
        assert!(self.is("!document.getElementById('stop').hidden && document.getElementById('send').hidden"));
        self.browser.press(ESCAPE);
        self.browser.wait("!document.querySelector('.busy') && document.getElementById('stop').hidden");
        assert!(self.is("[...document.querySelectorAll('.note')].at(-1).textContent === 'stopped'"));
        served.wait_until("nothing runs", Served::holds_nothing);
        assert_eq!(served.finished("abort"), 1.0, "the server was told");
    }

    /// Another answer in place of the last one, and another question in place of the first.
    fn asks_again(&mut self) {
        self.browser.run("[...document.querySelectorAll('article.answer button')].at(-1).click()");
        self.browser.wait("document.querySelector('article.busy')");
        self.browser.press(ESCAPE);
        self.browser.wait("!document.querySelector('.busy')");
        assert_eq!((self.count("article.user"), self.count("article.answer")), (2, 2));
        self.allow(Some(20));
        self.browser.run("document.querySelector('article.user .tools button:last-child').click()");
        // It begins with what was said.
        self.browser.wait(&format!("document.activeElement.value === {}", json!(ATTACK)));
        self.browser.run("document.activeElement.select()");
        self.browser.text("Say hello.");
        self.browser.press(ENTER);
        self.browser.wait(ANSWERED);
        assert_eq!((self.count("article.user"), self.count("article.answer")), (1, 1), "what came after it is gone");
    }

    /// What was said is there again after the page is, by its own title, and can be renamed and deleted.
    fn remembers(&mut self) {
        // The note is the last that an answer gets.
        self.browser
            .wait("import('/ui/store.js').then((s) => s.allChats()).then((all) => all[0].messages.at(-1).note)");
        let said = self.browser.run("document.getElementById('log').textContent");
        self.browser.reload();
        self.browser.wait("document.querySelector('article.answer .body')?.textContent");
        assert_eq!(self.browser.run("document.getElementById('log').textContent"), said);
        self.browser.run("document.querySelector('[aria-label^=Rename]').click()");
        assert!(self.is("document.getElementById('ask').open && document.activeElement.id === 'ask-input'"));
        self.browser.text("Greetings");
        self.browser.press(ENTER);
        self.browser.wait("document.querySelector('#chats .pick').textContent === 'Greetings'");
        self.deletes();
        // One that is being answered does not come back with the end of its answer.
        self.allow(None);
        self.browser.text("Count from one to five hundred in words, one number a line.");
        self.browser.press(ENTER);
        self.browser.wait("document.querySelector('article.busy .body')?.textContent.length > 3");
        self.deletes();
        self.browser.wait("document.getElementById('status').textContent === 'Stopped.'");
        assert_eq!(self.count("#chats li"), 0);
        self.allow(Some(20));
    }

    /// Deletes the one chat.
    fn deletes(&mut self) {
        self.browser.run("document.querySelector('[aria-label^=Delete]').click()");
        self.browser.wait("document.getElementById('ask').open");
        self.browser.run("document.getElementById('ask-yes').click()");
        self.browser.wait("!document.querySelector('#chats li') && !document.querySelector('article')");
    }

    /// Markdown becomes what it means; whatever else a text says stays text.
    fn shows_markdown(&mut self) {
        let chat = json!({
            "id": "written", "title": "Sorting", "changed": 1, "system": "",
            "messages": [
                {"role": "user", "content": "How do I sort?"},
                {"role": "assistant", "content": WRITTEN, "reasoning": "They want **sorting**.", "note": "128 tokens"},
            ],
        });
        self.browser.run(&format!("import('/ui/store.js').then((s) => s.keepChat({chat}))"));
        self.browser.run("localStorage.setItem('zinc.chat', 'written')");
        self.browser.reload();
        self.browser.wait("document.querySelector('article.answer figure')");
        for (selector, count) in [
            ("h3", 1),
            ("p > code", 1),
            ("p > strong", 1),
            ("p > em", 1),
            ("figure pre code", 1),
            ("ol > li", 2),
            ("ol ul > li", 2),
            ("blockquote p", 1),
            ("tbody tr", 2),
            ("th.right", 1),
            ("li > input:checked", 1),
            ("a", 1),
            ("script, img, iframe, b, form, object, embed", 0),
        ] {
            assert_eq!(self.count(&format!("article.answer .body :is({selector})")), count, "{selector}");
        }
        assert!(
            self.is(
                "document.querySelector('article.answer a').href === 'https://docs.python.org/3/howto/sorting.html'"
            )
        );
        assert!(
            self.is("document.querySelector('.answer .body').textContent.includes('<script>window.pwned=1</script>')")
        );
        assert!(self.is("!document.querySelector('details').open && document.querySelector('.thoughts strong')"));
        // The policy holds even where the page itself would be wrong.
        let refused = "(() => { try { document.body.innerHTML = '<b>x</b>'; return false } catch { return true } })()";
        assert!(self.is(refused), "text cannot become markup");
        assert!(self.is("window.pwned === undefined"));
    }

    /// Dark, light whatever the system likes, and as narrow as a phone.
    fn fits(&mut self) {
        let background = "getComputedStyle(document.body).backgroundColor";
        let light = self.browser.run(background);
        self.browser.run("document.getElementById('main').scrollTop = 0");
        self.picture("3-markdown");
        self.browser.dark(true);
        let dark = self.browser.run(background);
        assert_ne!(light, dark);
        self.picture("4-dark");
        self.browser.run("document.getElementById('theme').click()");
        assert_eq!(self.browser.run(background), light, "what was chosen goes before what the system likes");
        self.browser.run("document.getElementById('theme').click()");
        self.browser.size(360, 740, true);
        self.browser.wait("innerWidth === 360");
        let wide = "[document.documentElement, ...document.querySelectorAll('#page, #main, #log, header, #bottom')]";
        assert!(self.is(&format!("{wide}.every((e) => e.scrollWidth <= 360)")), "nothing is wider than a phone");
        self.browser.wait("getComputedStyle(document.querySelector('nav')).visibility === 'hidden'");
        self.picture("5-phone");
        self.browser.run("document.getElementById('side-open').click()");
        assert!(self.is("document.activeElement.id === 'new'"));
        self.browser.wait("document.querySelector('nav').getBoundingClientRect().left === 0");
        self.picture("6-phone-chats");
        self.browser.press(ESCAPE);
        assert!(self.is("document.activeElement.id === 'side-open'"), "the focus goes back");
        self.browser.run("document.getElementById('theme').click()");
        self.browser.dark(false);
        self.browser.size(1200, 800, false);
    }

    /// All that can be pressed has a name, can be reached with Tab, and settings keep the focus inside.
    fn is_usable_without_a_mouse(&mut self) {
        let nameless = "[...document.querySelectorAll('button, input, textarea, a')].filter((e) => e.checkVisibility())\
            .filter((e) => !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length || e.id === 'ask-input'))\
            .map((e) => e.outerHTML)";
        assert_eq!(self.browser.run(nameless), json!([]));
        self.browser.run("document.activeElement.blur()");
        let mut reached = vec![];
        for _ in 0..90 {
            self.browser.press(TAB);
            let at = self.browser.run("document.activeElement.id");
            reached.extend(at.as_str().filter(|id| !id.is_empty()).map(str::to_owned));
            if at == "open-settings" && reached.iter().any(|id| id == "new") {
                break;
            }
        }
        assert!(["new", "theme"].iter().all(|id| reached.iter().any(|r| r == id)), "{reached:?}");
        self.browser.press(ENTER);
        assert!(self.is("document.getElementById('settings').open"));
        self.picture("7-settings");
        self.browser.press(ESCAPE);
        self.browser.wait("!document.getElementById('settings').open && document.activeElement.id === 'input'");
    }
}

#[test]
fn the_page_does_what_it_should_and_nothing_else() {
    let (pictures, model) = match needs() {
        Ok(both) => both,
        Err(why) => return println!("not run: {why}"),
    };
    let profile = scratch("page");
    let Some(browser) = Browser::start(&profile) else {
        return println!("not run: Chromium absent (cargo xtask setup)");
    };
    let served = Served::start(&[&model, "-c", "2048", "-np", "2"]);
    let mut page = Page { browser, pictures };
    page.browser.size(1200, 800, false);
    page.browser.prepare(AT_LENGTH);
    page.browser.open(&format!("{}/", served.base));
    page.browser.wait("document.getElementById('model').textContent.includes('SmolLM2')");
    page.chats();
    page.stops(&served);
    page.asks_again();
    page.remembers();
    assert_eq!(page.browser.complaints(), [""; 0], "up to here, nothing was refused");
    page.shows_markdown();
    page.browser.complaints();
    page.fits();
    page.is_usable_without_a_mouse();
    assert!(page.is("window.pwned === undefined"));
    assert_eq!(page.browser.complaints(), [""; 0]);
    drop(page);
    std::fs::remove_dir_all(profile).ok();
}

#[test]
fn the_page_asks_for_the_key_and_says_what_is_wrong() {
    if Browser::start(&scratch("absent")).is_none() {
        return println!("not run: Chromium absent (cargo xtask setup)");
    }
    let profile = scratch("key");
    let mut browser = Browser::start(&profile).expect("it was there just now");
    let model = model("llama");
    let served = Served::start(&[&model, "--api-key", "sk-page", "--chat-template", "chatml", "-c", "64"]);
    browser.open(&format!("{}/", served.base));
    browser.wait("document.getElementById('settings').open && document.activeElement.id === 'key'");
    assert_eq!(browser.run("document.getElementById('model').textContent"), "API key needed");
    browser.text("sk-page");
    browser.press(TAB);
    browser.wait("document.getElementById('model').textContent === 'model'");
    browser.press(ESCAPE);
    browser.wait("document.activeElement.id === 'input'");
    browser.text(&"far too long ".repeat(60));
    browser.press(ENTER);
    browser.wait("document.querySelector('.trouble')?.checkVisibility()");
    let trouble = browser.run("document.querySelector('.trouble').textContent");
    assert!(trouble.as_str().is_some_and(|t| t.contains("context is 64 tokens")), "{trouble}");
    drop(browser);
    std::fs::remove_dir_all(profile).ok();
}

#[test]
fn the_page_is_sent_under_a_strict_policy_or_not_at_all() {
    let served = Served::start(&[&model("llama")]);
    let page = ureq::get(&served.base).call().expect("a page");
    let header = |name: &str| page.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
    assert!(header("content-security-policy").starts_with("default-src 'none'; script-src 'self';"));
    assert_eq!((header("x-content-type-options"), header("cache-control")), ("nosniff".into(), "no-cache".into()));
    let known = ureq::get(&served.base).header("If-None-Match", header("etag")).call().expect("an answer");
    assert_eq!(known.status(), 304);
    let served = Served::start(&[&model("llama"), "--no-webui"]);
    for path in ["/", "/ui/app.js"] {
        let answer = ureq::get(format!("{}{path}", served.base)).call();
        assert!(matches!(answer, Err(ureq::Error::StatusCode(404))), "{path}: {answer:?}");
    }
}
