//! Driver sets out of Debian packages, unpacked into folders of their own.
//!
//! ```text
//!  the machine's APT source ─► mirror URL ─private APT─► *.deb ─dpkg-deb -x─► ROOT/usr
//! ```
//!
//! APT resolves against an empty list of installed packages, so a root is complete down to its own C
//! library, and the machine's packages stay as they are. No maintainer script runs: these packages only
//! need their files. [`crate::drivers`] puts `ROOT/usr` over `/usr` for one process.

use crate::process::{at, capture, found, run, step, test_folder};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One folder tree of packages.
pub(crate) struct Root {
    /// Name of the folder below `target/zinc-test`.
    pub(crate) name: &'static str,
    /// Suite that APT prefers.
    suite: &'static str,
    /// Packages besides their dependencies, in APT's notation.
    packages: &'static [&'static str],
    /// What the version of `mesa-vulkan-drivers` must be.
    mesa: Versions,
}

/// A demand on a version number.
enum Versions {
    /// Exactly this release, because later ones dropped what we need.
    Release(&'static str),
    /// This release (major, minor) or any later one.
    From(u32, u32),
}

/// Mesa with cooperative matrices on lavapipe, and current Vulkan tools.
pub(crate) const MESA_26: Root = Root {
    name: "mesa-26.1",
    suite: "trixie-backports",
    packages: &[
        "mesa-vulkan-drivers",
        "libvulkan1",
        "vulkan-validationlayers",
        "vulkan-tools",
        "spirv-tools",
        "dash",
        "coreutils",
    ],
    mesa: Versions::From(26, 1),
};

/// The last Mesa whose RADV both runs without hardware and knows every family we ask for.
pub(crate) const MESA_25: Root = Root {
    name: "mesa-25.0",
    suite: "trixie",
    packages: &["mesa-vulkan-drivers=25.0.7*", "libvulkan1", "vulkan-tools", "dash", "coreutils"],
    mesa: Versions::Release("25.0.7"),
};

/// Signs both suites; part of every Debian installation.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Where a root lies.
pub(crate) fn folder(root: &Root) -> PathBuf {
    test_folder().join(root.name)
}

/// The folder of shared libraries below a root's `usr`.
pub(crate) fn library_folder(root: &Root) -> PathBuf {
    folder(root).join("usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH))
}

/// Makes a root complete; does nothing when it is. `mirror` replaces the URL of the machine's own source.
pub(crate) fn install(root: &Root, mirror: Option<&str>) -> Result<(), String> {
    let recipe = format!("{} {:?}\n", root.suite, root.packages);
    let stamp = folder(root).join("complete");
    if fs::read_to_string(&stamp).is_ok_and(|done| done == recipe) {
        return Ok(());
    }
    prerequisites()?;
    let mirror = match mirror {
        Some(url) => url.to_string(),
        None => machine_mirror(Path::new("/etc/apt"))?,
    };
    let archives = test_folder().join("apt").join(root.name);
    let config = private_apt(&mirror, &archives)?;
    download(root, &config, &archives)?;
    unpack(root, &archives)?;
    fs::write(&stamp, recipe).map_err(at(&stamp))?;
    fs::remove_dir_all(&archives).map_err(at(&archives))
}

fn prerequisites() -> Result<(), String> {
    let absent: Vec<&str> = ["apt-get", "dpkg", "dpkg-deb"].into_iter().filter(|program| !found(program)).collect();
    if !absent.is_empty() {
        return Err(format!(
            "the driver sets are unpacked from Debian packages with {}, not found here; on another \
             distribution install the packages apt, dpkg and debian-archive-keyring, or run the tests \
             on Debian 12 or later",
            absent.join(", ")
        ));
    }
    if !Path::new(KEYRING).exists() {
        return Err(format!("{KEYRING} is missing: install the package debian-archive-keyring"));
    }
    Ok(())
}

/// The URL of the Debian archive that this machine installs from.
fn machine_mirror(etc: &Path) -> Result<String, String> {
    let mut files = vec![etc.join("sources.list")];
    let parts = etc.join("sources.list.d");
    if let Ok(entries) = fs::read_dir(&parts) {
        files.extend(entries.flatten().map(|entry| entry.path()));
    }
    files.sort();
    let texts = files.iter().filter_map(|file| {
        let kind = file.extension()?.to_str()?;
        let text = fs::read_to_string(file).ok()?;
        mirror_in(&text, kind)
    });
    texts.into_iter().next().ok_or_else(|| {
        format!(
            "no source of a Debian release (bookworm, trixie, …) among {}; give one with \
             `cargo xtask setup --mirror URL`",
            etc.display()
        )
    })
}

/// The first URL in a source file, `list` (one line) or `sources` (paragraphs), that serves a Debian release.
fn mirror_in(text: &str, kind: &str) -> Option<String> {
    // Other suites (security, third parties) live at other URLs, so the suite's name decides.
    let debian = |suite: &str| matches!(suite, "bookworm" | "trixie" | "forky" | "stable" | "testing" | "sid");
    match kind {
        "list" => text.lines().find_map(|line| {
            let line = line.trim().strip_prefix("deb ")?.trim_start();
            let rest = match line.strip_prefix('[') {
                Some(options) => options.split_once(']')?.1,
                None => line,
            };
            let mut words = rest.split_whitespace();
            let url = words.next()?;
            debian(words.next()?).then(|| url.to_string())
        }),
        "sources" => text.split("\n\n").find_map(|paragraph| {
            let field = |name: &str| {
                paragraph
                    .lines()
                    .filter(|line| !line.starts_with('#'))
                    .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                    .map(str::trim)
            };
            let url = field("URIs")?.split_whitespace().next()?;
            field("Suites")?.split_whitespace().any(debian).then(|| url.to_string())
        }),
        _ => None,
    }
}

/// Writes the configuration of an APT that knows only our two suites and no installed package.
fn private_apt(mirror: &str, archives: &Path) -> Result<PathBuf, String> {
    let apt = test_folder().join("apt");
    for part in ["state/lists/partial", "cache"] {
        let part = apt.join(part);
        fs::create_dir_all(&part).map_err(at(&part))?;
    }
    let partial = archives.join("partial");
    fs::create_dir_all(&partial).map_err(at(&partial))?;
    let write = |name: &str, text: String| {
        let path = apt.join(name);
        fs::write(&path, text).map_err(at(&path)).map(|()| path)
    };
    let suites = ["trixie", "trixie-backports"];
    let lines = suites.map(|suite| format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n"));
    write("sources.list", lines.concat())?;
    write("status", String::new())?;
    let architecture = capture(Command::new("dpkg").arg("--print-architecture"))?;
    let architecture = architecture.trim();
    let apt = apt.display();
    let settings = format!(
        "Dir::State \"{apt}/state\";\nDir::State::status \"{apt}/status\";\nDir::Cache \"{apt}/cache\";\n\
         Dir::Etc::sourcelist \"{apt}/sources.list\";\nDir::Etc::sourceparts \"/dev/null\";\n\
         Dir::Etc::preferences \"/dev/null\";\nDir::Etc::preferencesparts \"/dev/null\";\n\
         Dir::Cache::archives \"{archives}\";\nDir::Log \"{apt}/log\";\n\
         APT::Architecture \"{architecture}\";\nAPT::Architectures {{ \"{architecture}\"; }};\n\
         APT::Install-Recommends \"false\";\nAPT::Sandbox::User \"root\";\nAcquire::Languages \"none\";\n\
         Acquire::Retries \"3\";\nAcquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n",
        archives = archives.display(),
    );
    write("apt.conf", settings)
}

fn download(root: &Root, config: &Path, archives: &Path) -> Result<(), String> {
    let apt_get = || {
        let mut command = Command::new("apt-get");
        command.env("APT_CONFIG", config).env("LC_ALL", "C").arg("--quiet");
        command
    };
    step(&format!("{}: reading the package lists", root.name));
    capture(apt_get().arg("update"))?;
    step(&format!("{}: downloading packages (about 80 MB)", root.name));
    let mut install = apt_get();
    install.args(["install", "--yes", "--download-only", "-t", root.suite]).args(root.packages);
    let said = capture(&mut install)?;
    if let Some(fetched) = said.lines().find(|line| line.starts_with("Fetched")) {
        step(&format!("{}: {}", root.name, fetched.to_lowercase()));
    }
    let version = debs(archives)?
        .iter()
        .filter_map(|file| file.file_name()?.to_str())
        .find_map(|name| name.strip_prefix("mesa-vulkan-drivers_")?.split('_').next().map(str::to_string))
        .ok_or_else(|| format!("{}: APT downloaded no mesa-vulkan-drivers", root.name))?;
    if !accepts(&root.mesa, &version) {
        return Err(format!("{}: the archive offers Mesa {version}, which does not fit", root.name));
    }
    step(&format!("{}: Mesa {version}", root.name));
    Ok(())
}

fn accepts(demand: &Versions, version: &str) -> bool {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    match *demand {
        Versions::Release(release) => {
            version.strip_prefix(release).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
        }
        Versions::From(major, minor) => {
            let offered = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
            offered >= (major, minor)
        }
    }
}

fn debs(archives: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(archives).map_err(at(archives))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|kind| kind == "deb"));
    files.sort();
    Ok(files)
}

/// Unpacks into a fresh folder beside the old one, then takes its place, so that a stop in between harms nothing.
fn unpack(root: &Root, archives: &Path) -> Result<(), String> {
    let done = folder(root);
    let fresh = done.with_file_name(format!("{}.new", root.name));
    for old in [&fresh, &done] {
        if old.exists() {
            fs::remove_dir_all(old).map_err(at(old))?;
        }
    }
    // The machine's own /usr/local stays visible inside, mounted here.
    let local = fresh.join("usr/local");
    fs::create_dir_all(&local).map_err(at(&local))?;
    let files = debs(archives)?;
    step(&format!("{}: unpacking {} packages", root.name, files.len()));
    for file in files {
        run(Command::new("dpkg-deb").arg("--extract").arg(&file).arg(&fresh))?;
    }
    fs::rename(&fresh, &done).map_err(at(&done))
}

#[cfg(test)]
mod tests {
    use super::{Versions, accepts, mirror_in};

    #[test]
    fn mirrors_of_both_notations() {
        let paragraphs = "Types: deb\n# URIs: http://old.example\nURIs: http://mirror.example/debian\n\
                          Suites: bookworm bookworm-updates\nComponents: main\n\nTypes: deb\n\
                          URIs: http://security.example\nSuites: bookworm-security\n";
        assert_eq!(mirror_in(paragraphs, "sources").as_deref(), Some("http://mirror.example/debian"));
        let lines = "# deb http://old.example bookworm main\ndeb http://other.example noble main\n\
                     deb [signed-by=/k.gpg arch=amd64] http://mirror.example/debian bookworm main\n";
        assert_eq!(mirror_in(lines, "list").as_deref(), Some("http://mirror.example/debian"));
        let security = "Types: deb\nURIs: http://security.example\nSuites: bookworm-security\n";
        assert_eq!(mirror_in(security, "sources"), None);
        assert_eq!(mirror_in(paragraphs, "disabled"), None);
    }

    #[test]
    fn versions_that_fit() {
        assert!(accepts(&Versions::Release("25.0.7"), "25.0.7-2+deb13u1"));
        assert!(!accepts(&Versions::Release("25.0.7"), "25.0.70-1"));
        assert!(accepts(&Versions::From(26, 1), "26.1.6-1~bpo13+1"));
        assert!(accepts(&Versions::From(26, 1), "27.0.0-1"));
        assert!(!accepts(&Versions::From(26, 1), "26.0.9-1"));
    }
}
