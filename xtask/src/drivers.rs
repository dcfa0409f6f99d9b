//! Driver sets: which Vulkan a program sees, whatever the machine has.
//!
//! ```text
//!  vk DRIVER -- cargo test …  ─► cargo on the host, its test binaries through `enter`
//!  vk DRIVER -- PROGRAM …     ─► enter
//!  enter DRIVER PROGRAM ─► own mount namespace, ROOT/usr over /usr ─► PROGRAM
//! ```
//!
//! Only `/usr` changes, and only for that process and its children: all other paths, the project's folder
//! among them, stay where they are. The root has a newer C library than any machine we build on, so
//! binaries built on the host run inside. Where the kernel allows no mount namespace, the root's dynamic
//! loader starts the program instead; its children then see the host's libraries.

use crate::process::{at, capture, cargo, found, step, test_folder};
use crate::setup::packages::{self, Root, library_folder};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread::JoinHandle;

/// The hidden command that cargo calls as its runner.
pub(crate) const ENTER: &str = "enter";

/// Tells a test which device it must find: set to the driver's full name inside every driver set.
const ANNOUNCE: &str = "ZINC_TEST_VULKAN";

/// One row: a driver and how it is set up. `NAME:OPTION` picks another option.
struct DriverSet {
    name: &'static str,
    about: &'static str,
    root: &'static Root,
    manifest: &'static str,
    layers: Layers,
    /// Environment variable that takes the option, its default and examples of others.
    option: (&'static str, &'static str, &'static [&'static str]),
}

/// Which checks of the Khronos validation layer are on.
#[derive(Clone, Copy, PartialEq)]
enum Layers {
    None,
    /// Everything that needs no change to the shaders, with synchronisation checks.
    Core,
    /// Shaders instrumented to check addresses and descriptors as they run, and nothing else: the layer's
    /// authors advise against both at once.
    GpuAssisted,
}

const WIDTHS: (&str, &str, &[&str]) = ("LP_NATIVE_VECTOR_WIDTH", "256", &["128", "256", "512"]);

const DRIVERS: &[DriverSet] = &[
    DriverSet {
        name: "lavapipe",
        about: "software Vulkan; subgroups of 4, 8 or 16 with :128, :256 (default), :512",
        root: &packages::MESA_26,
        manifest: "lvp_icd.json",
        layers: Layers::None,
        option: WIDTHS,
    },
    DriverSet {
        name: "lavapipe-validated",
        about: "the same under the validation layer; any message fails the run",
        root: &packages::MESA_26,
        manifest: "lvp_icd.json",
        layers: Layers::Core,
        option: WIDTHS,
    },
    DriverSet {
        name: "lavapipe-gpu-assisted",
        about: "the same with instrumented shaders (slow)",
        root: &packages::MESA_26,
        manifest: "lvp_icd.json",
        layers: Layers::GpuAssisted,
        option: WIDTHS,
    },
    DriverSet {
        name: "radv",
        about: "AMD's compiler without a card: pipelines compile, nothing runs; :navi33 (default), :navi31, …",
        root: &packages::MESA_25,
        manifest: "radeon_icd.json",
        layers: Layers::None,
        option: ("RADV_FORCE_FAMILY", "navi33", &[]),
    },
];

/// A row with its option chosen.
pub(crate) struct Driver {
    row: &'static DriverSet,
    option: String,
}

/// Names and descriptions of all driver sets.
pub(crate) fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    DRIVERS.iter().map(|row| (row.name, row.about))
}

impl Driver {
    /// Finds `NAME` or `NAME:OPTION`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (name, option) = text.split_once(':').map_or((text, None), |(name, option)| (name, Some(option)));
        let row = DRIVERS.iter().find(|row| row.name == name).ok_or_else(|| {
            let known: Vec<&str> = names().map(|(name, _)| name).collect();
            format!("there is no driver set `{name}`; known: {}", known.join(", "))
        })?;
        let (variable, default, allowed) = row.option;
        let option = option.unwrap_or(default);
        if !allowed.is_empty() && !allowed.contains(&option) {
            return Err(format!("{variable} of `{name}` is one of {}, not `{option}`", allowed.join(", ")));
        }
        Ok(Self { row, option: option.to_string() })
    }

    /// `NAME:OPTION`.
    fn full_name(&self) -> String {
        format!("{}:{}", self.row.name, self.option)
    }

    /// Whether setup has put the root in place.
    pub(crate) fn is_installed(&self) -> bool {
        packages::folder(self.row.root).join("complete").exists()
    }

    /// `cargo ARGUMENTS` on the host, whose test binaries (and `cargo run`) run inside this driver set.
    pub(crate) fn cargo(&self, arguments: &[String]) -> Result<Command, String> {
        let own = std::env::current_exe().map_err(|error| format!("own path: {error}"))?;
        let own = own.to_str().ok_or("the project's path is not UTF-8")?;
        // A list in TOML, not a variable of the environment, so that a path with a space stays whole.
        let runner = format!("target.'cfg(all())'.runner = [{own:?}, {ENTER:?}, {:?}]", self.full_name());
        let mut command = cargo();
        command.arg("--config").arg(runner).args(arguments);
        Ok(command)
    }

    /// `program` inside this driver set. The program's arguments are still to be added.
    pub(crate) fn program(&self, program: &Path, validation: Option<&Validation>) -> Result<Command, String> {
        if !self.is_installed() {
            return Err(format!("the driver set `{}` is not set up: run `cargo xtask setup`", self.row.name));
        }
        let way = Way::of_this_machine();
        let mut command = way.command(self.row.root, program);
        let share = way.usr(self.row.root).join("share/vulkan");
        let (variable, ..) = self.row.option;
        command
            .env("VK_DRIVER_FILES", share.join("icd.d").join(self.row.manifest))
            .env("VK_LOADER_LAYERS_DISABLE", "~implicit~")
            .env("VK_LAYER_PATH", share.join("explicit_layer.d"))
            .env(variable, &self.option)
            .env(ANNOUNCE, self.full_name())
            // Keeps the developer's own caches out of the tests and the tests out of them.
            .env("XDG_CACHE_HOME", test_folder().join("cache"));
        if let Some(validation) = validation {
            command
                .env("VK_INSTANCE_LAYERS", "VK_LAYER_KHRONOS_validation")
                .env("VK_LAYER_SETTINGS_PATH", &validation.folder);
        }
        Ok(command)
    }
}

/// How a program gets to see a root's libraries.
#[derive(Clone, Copy)]
enum Way {
    /// A mount namespace; as root, or as root of a user namespace.
    Namespace { as_root: bool },
    /// The root's dynamic loader with its library path.
    Loader,
}

impl Way {
    fn of_this_machine() -> Self {
        for as_root in [true, false] {
            let way = Way::Namespace { as_root };
            let mut probe = way.unshare();
            if capture(probe.args(["sh", "-c", "mount --bind /usr /usr"])).is_ok() {
                return way;
            }
        }
        Way::Loader
    }

    fn unshare(self) -> Command {
        let mut command = Command::new("unshare");
        if matches!(self, Way::Namespace { as_root: false }) {
            command.arg("--map-root-user");
        }
        command.arg("--mount");
        command
    }

    fn command(self, root: &Root, program: &Path) -> Command {
        match self {
            Way::Namespace { .. } => {
                // The shell was loaded before /usr changed, and becomes the program.
                let script = "mount --bind /usr/local \"$0/local\"; mount --rbind \"$0\" /usr && exec \"$@\"";
                let mut command = self.unshare();
                command.args(["sh", "-c", script]).arg(packages::folder(root).join("usr")).arg(program);
                command
            }
            Way::Loader => {
                let libraries = library_folder(root);
                let inside = packages::folder(root).join("usr/bin").join(program);
                let program = if inside.is_file() { inside } else { program.to_path_buf() };
                let mut command = Command::new(loader(&libraries));
                command.arg("--library-path").arg(&libraries).arg(program);
                command
            }
        }
    }

    /// Where the program sees the root's `usr`.
    fn usr(self, root: &Root) -> PathBuf {
        match self {
            Way::Namespace { .. } => PathBuf::from("/usr"),
            Way::Loader => packages::folder(root).join("usr"),
        }
    }
}

/// The dynamic loader in a folder of libraries (`ld-linux-x86-64.so.2`, `ld-linux-aarch64.so.1`).
fn loader(libraries: &Path) -> PathBuf {
    let entries = fs::read_dir(libraries).into_iter().flatten().flatten();
    let mut names = entries
        .map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-linux-")));
    names.next().unwrap_or_else(|| libraries.join("ld-linux.so"))
}

/// The settings of the validation layer for one program and its children, and a listener to what it says.
pub(crate) struct Validation {
    folder: PathBuf,
    /// Our own end of the pipe, which keeps it open however many processes come and go.
    pipe: File,
    listener: JoinHandle<String>,
}

/// Ends the listening; no message contains it.
const END: u8 = 0;

impl Validation {
    /// Writes the settings that `layers` asks for and begins to listen.
    fn new(layers: Layers) -> Result<Option<Self>, String> {
        if layers == Layers::None {
            return Ok(None);
        }
        let folder = test_folder().join("validation").join(std::process::id().to_string());
        fs::create_dir_all(&folder).map_err(at(&folder))?;
        // A pipe, because each process of a test opens the file afresh and would empty it.
        let messages = folder.join("messages");
        capture(Command::new("mkfifo").arg(&messages))?;
        let open = || File::options().read(true).write(true).open(&messages).map_err(at(&messages));
        let gpu_assisted = layers == Layers::GpuAssisted;
        // The layer writes to a file even when the program listens itself, so no message gets lost.
        // Left out are its own remarks about the features that instrumenting the shaders needs.
        let settings = format!(
            "khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG\n\
             khronos_validation.log_filename = {}\n\
             khronos_validation.report_flags = error,warn\n\
             khronos_validation.validate_core = {}\n\
             khronos_validation.validate_sync = {}\n\
             khronos_validation.gpuav_enable = {gpu_assisted}\n\
             khronos_validation.message_id_filter = WARNING-GPU-Assisted-Validation,VALIDATION-SETTINGS\n",
            messages.display(),
            !gpu_assisted,
            !gpu_assisted,
        );
        let path = folder.join("vk_layer_settings.txt");
        fs::write(&path, settings).map_err(at(&path))?;
        let reader = BufReader::new(open()?);
        let listener = std::thread::spawn(move || {
            let mut said = Vec::new();
            let mut reader = reader;
            // An error ends the listening as the mark does: what was heard is still reported.
            let _ = reader.read_until(END, &mut said);
            String::from_utf8_lossy(said.strip_suffix(&[END]).unwrap_or(&said)).into_owned()
        });
        Ok(Some(Self { folder, pipe: open()?, listener }))
    }

    /// What the layer said.
    fn finish(mut self) -> Result<String, String> {
        self.pipe.write_all(&[END]).map_err(at(&self.folder))?;
        let said = self.listener.join().map_err(|_| "the listener to the validation layer panicked")?;
        fs::remove_dir_all(&self.folder).map_err(at(&self.folder))?;
        Ok(said.trim().to_string())
    }
}

/// `cargo xtask vk DRIVER -- PROGRAM [ARGS]`
pub(crate) fn command(arguments: &[String]) -> Result<ExitCode, String> {
    let usage = "usage: cargo xtask vk DRIVER -- PROGRAM [ARGS]";
    let [name, rest @ ..] = arguments else {
        return Err(usage.to_string());
    };
    let rest = if rest.first().is_some_and(|word| word == "--") { &rest[1..] } else { rest };
    let [program, program_arguments @ ..] = rest else {
        return Err(usage.to_string());
    };
    if program != "cargo" {
        return enter_with(name, program, program_arguments);
    }
    let driver = Driver::parse(name)?;
    if !driver.is_installed() {
        return Err(format!("the driver set `{name}` is not set up: run `cargo xtask setup`"));
    }
    let mut cargo = driver.cargo(program_arguments)?;
    let status = cargo.status().map_err(|error| format!("cannot start cargo: {error}"))?;
    Ok(exit_code(status))
}

/// `cargo xtask enter DRIVER PROGRAM [ARGS]`
pub(crate) fn enter(arguments: &[String]) -> Result<ExitCode, String> {
    let [name, program, rest @ ..] = arguments else {
        return Err("usage: cargo xtask enter DRIVER PROGRAM [ARGS]".to_string());
    };
    enter_with(name, program, rest)
}

/// Runs the program; a validation message turns success into failure.
fn enter_with(name: &str, program: &str, arguments: &[String]) -> Result<ExitCode, String> {
    let driver = Driver::parse(name)?;
    let validation = Validation::new(driver.row.layers)?;
    let mut command = driver.program(Path::new(program), validation.as_ref())?;
    command.args(arguments.iter().map(OsString::from));
    let status = command.status().map_err(|error| format!("cannot start `{program}`: {error}"))?;
    let said = validation.map(Validation::finish).transpose()?.unwrap_or_default();
    if said.is_empty() {
        return Ok(exit_code(status));
    }
    eprintln!("{said}");
    eprintln!("error: the validation layer had something to say (above): this run fails");
    Ok(if status.success() { ExitCode::from(101) } else { exit_code(status) })
}

/// A program's exit code, or 128 plus the signal that ended it, as shells count.
fn exit_code(status: std::process::ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// Checks that each root's driver comes up as the device it should be.
pub(crate) fn check() -> Result<(), String> {
    if !found("unshare") {
        step("`unshare` (package util-linux) is missing: programs will be started through the root's loader");
    }
    let rows = [
        ("lavapipe-validated:512", "llvmpipe"),
        ("radv:navi33", "(RADV NAVI33)"),
        ("radv:navi31", "(RADV NAVI31)"),
        ("radv:gfx1201", "(RADV GFX1201)"),
    ];
    for (name, device) in rows {
        let driver = Driver::parse(name)?;
        let stamp = packages::folder(driver.row.root).join(format!("checked-{}", name.replace(':', "-")));
        if stamp.exists() {
            continue;
        }
        let mut command = driver.program(Path::new("vulkaninfo"), None)?;
        // Without hardware RADV cannot answer all that vulkaninfo asks, so its exit code says nothing;
        // the loader's own report of the devices does.
        let output = command
            .arg("--summary")
            .env("VK_LOADER_DEBUG", "driver,info")
            .output()
            .map_err(|error| format!("cannot start vulkaninfo: {error}"))?;
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if !said.contains(device) {
            return Err(format!("{name} shows no device {device}; vulkaninfo said:\n{said}"));
        }
        fs::write(&stamp, "").map_err(at(&stamp))?;
        step(&format!("{name}: works"));
    }
    Ok(())
}
