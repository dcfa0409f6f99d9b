//! A node that is started again answers a long prompt that it knew without computing it, and what is wrong on its disk is as if
//! it were not there.

mod client;

use client::*;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use zinc_cpu::CpuDevice;
use zinc_ir::plan::{KvType, KvTypes};

/// A folder of its own, which goes when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("kept-{test}-{}", std::process::id()));
        fs::remove_dir_all(&folder).ok();
        Folder(folder)
    }

    /// Its pages, the beginnings of prompts first.
    fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> =
            fs::read_dir(&self.0).expect("a folder").map(|f| f.expect("a file").path()).collect();
        files.sort();
        files
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn serve_from(folder: &Path, limit: u64, kv: KvTypes) -> Running {
    let kept = Kept { folder: folder.to_owned(), limit, kv };
    let open: Open = Box::new(|| Ok(Box::new(CpuDevice::new(1)?)));
    let server = start(config(USUAL), move || load_kept("llama", USUAL, open, Some(kept)));
    server.wait_until("the model is loaded", |s| s.get("/health").status == 200);
    server
}

const F16: KvTypes = KvTypes { k: KvType::F16, v: KvType::F16 };
const NO_LIMIT: u64 = 1 << 40;

/// What is generated, and how much of the prompt need not be computed.
fn ask(server: &Running, prompt: &str) -> (Value, u64) {
    let body = json!({"prompt": prompt, "max_tokens": 40, "seed": 3, "ignore_eos": true});
    let reply = server.post("/v1/completions", &body).ok();
    let cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
    (reply["choices"][0]["text"].clone(), cached)
}

fn long(word: &str) -> String {
    format!("{word} ").repeat(60)
}

#[test]
fn a_node_started_again_knows_what_it_knew() {
    let folder = Folder::new("again");
    let prompt = long("whale");
    let first = serve_from(&folder.0, NO_LIMIT, F16);
    let (text, cached) = ask(&first, &prompt);
    assert_eq!(cached, 0);
    first.stop.drain();
    first.join().expect("a clean end");
    let pages = folder.files().len();
    assert!(pages >= 3, "{pages} pages");
    let second = serve_from(&folder.0, NO_LIMIT, F16);
    let (again, cached) = ask(&second, &prompt);
    assert!(again == text && cached >= 96, "{cached} tokens are known");
    assert_eq!(second.metric("zinc_kv_pages_restored_total"), cached as f64 / 32.0);
    assert_eq!(ask(&second, &prompt), (text.clone(), cached), "then it is in memory");
    assert_eq!(second.metric("zinc_kv_pages_restored_total"), cached as f64 / 32.0);
    drop(second);
    let other = KvTypes { v: KvType::F32, ..F16 };
    assert_eq!(ask(&serve_from(&folder.0, NO_LIMIT, other), &prompt).1, 0, "K and V of other types are others");
    assert_eq!(ask(&serve_from(&folder.0, NO_LIMIT, F16), &prompt), (text, cached), "and disturb nobody");
}

#[test]
fn a_salt_keeps_prompts_apart_on_disk_too() {
    let folder = Folder::new("salt");
    let prompt = long("shark");
    let cached = |server: &Running, salt: Option<&str>| {
        let body = json!({"prompt": prompt, "max_tokens": 3, "cache_salt": salt});
        let reply = server.post("/v1/completions", &body).ok();
        reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number")
    };
    let salts = [None, Some("a"), Some("b")];
    let first = serve_from(&folder.0, NO_LIMIT, F16);
    assert_eq!(salts.map(|salt| cached(&first, salt)), [0; 3]);
    drop(first);
    let second = serve_from(&folder.0, NO_LIMIT, F16);
    assert_eq!(cached(&second, Some("c")), 0);
    assert!(salts.iter().all(|salt| cached(&second, *salt) >= 96));
}

#[test]
fn what_is_damaged_is_not_there() {
    let folder = Folder::new("damaged");
    let prompt = long("squid");
    let first = serve_from(&folder.0, NO_LIMIT, F16);
    let (text, _) = ask(&first, &prompt);
    drop(first);
    let files = folder.files();
    let whole: Vec<Vec<u8>> = files.iter().map(|f| fs::read(f).expect("a page")).collect();
    let size = whole[1].len();
    // Head, tokens, data and checksum; cut short; another page's content; nothing at all.
    let mut damages: Vec<Vec<u8>> = [0, 20, 45, 60, 190, 200, size / 2, size - 1]
        .map(|at| {
            let mut bytes = whole[1].clone();
            bytes[at] ^= 4;
            bytes
        })
        .to_vec();
    damages.extend([whole[1][..size / 2].to_vec(), whole[0].clone(), vec![]]);
    for (i, damaged) in damages.iter().enumerate() {
        files.iter().zip(&whole).for_each(|(file, bytes)| fs::write(file, bytes).expect("written"));
        fs::write(&files[1], damaged).expect("written");
        let server = serve_from(&folder.0, NO_LIMIT, F16);
        assert_eq!(ask(&server, &prompt), (text.clone(), 32), "damage {i}: only the page before it is of use");
        assert!(fs::read(&files[1]).map_or(true, |bytes| bytes != *damaged), "damage {i}: it is deleted");
        drop(server);
        assert_eq!(fs::read(&files[1]).expect("a page").len(), size, "damage {i}: it is written anew");
    }
    fs::write(folder.0.join("notes.txt"), "mine").expect("written");
    fs::write(folder.0.join(files[0].with_extension("7.part")), "half").expect("written");
    drop(serve_from(&folder.0, NO_LIMIT, F16));
    assert!(folder.0.join("notes.txt").exists() && !files[0].with_extension("7.part").exists());
}

#[test]
fn the_folder_stays_below_its_limit() {
    let folder = Folder::new("limit");
    drop({
        let server = serve_from(&folder.0, NO_LIMIT, F16);
        ask(&server, &long("crab"));
        server
    });
    let size = fs::metadata(&folder.files()[0]).expect("a page").len();
    let held = || folder.files().iter().map(|f| fs::metadata(f).expect("a page").len()).sum::<u64>();
    let pages = folder.files().len() as u64;
    // Room for one and a half prompts with their answers.
    let limit = size * pages * 3 / 2;
    for word in ["eel", "ray", "cod"] {
        ask(&serve_from(&folder.0, limit, F16), &long(word));
        assert!(held() <= limit, "{} of {limit} bytes", held());
    }
    assert!(held() <= limit && held() + size > limit, "it is made use of");
    let server = serve_from(&folder.0, limit, F16);
    assert!(ask(&server, &long("cod")).1 >= 96, "the newest is there");
    assert_eq!(ask(&server, &long("crab")).1, 0, "the oldest is not");
    drop(server);
    drop(serve_from(&folder.0, size * 2, F16));
    assert_eq!(folder.files().len(), 2, "a smaller limit holds from the start");
}
