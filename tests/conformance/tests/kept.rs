//! K and V on disk: another engine on another device of the kind takes a prompt's pages from there, computes only the rest, and
//! gives the same tokens and logits. Nothing else is taken.

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use zinc_compiler::Choices;
use zinc_conformance::{Fixture, InterpretedDevice, gpu_caps};
use zinc_cpu::CpuDevice;
use zinc_engine::{Engine, Event, Options, Request, Sampling};
use zinc_ir::device::Device;
use zinc_ir::plan::{ActPrecision, KvLayout, KvType, KvTypes};
use zinc_snapshots::{Snapshots, identity};
use zinc_vulkan::{Options as VulkanOptions, VulkanDevice};

/// A folder of its own, which goes when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("kept-{test}-{}", std::process::id()));
        std::fs::remove_dir_all(&folder).ok();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Three full pages, and some tokens.
const PROMPT: u32 = 100;

/// A new engine that keeps its pages in a folder.
fn engine(f: &Fixture, device: Box<dyn Device>, kv: KvTypes, act: ActPrecision, folder: &Path) -> Engine {
    let choices = Choices { act, invariant: true, ..Choices::default() };
    let options = Options { context: 256, rows: 64, kv, choices, ..Options::default() };
    let mut engine = Engine::new(device, f.graph.clone(), &f.weights, options, &mut |_| ()).expect("the model loads");
    let identity = identity(&engine, &f.weights);
    engine.keep_pages_in(Box::new(Snapshots::open(folder, 1 << 30, identity).expect("a folder")));
    engine
}

/// Tokens of the prompt that need not be computed, and what is generated: tokens and logits.
fn answer(engine: &mut Engine, prompt: Vec<u32>, predict: u32) -> (u32, Vec<u32>, Vec<Vec<f32>>) {
    let sampling = Sampling { temperature: 1.0, top_k: 30, seed: 4, ..Sampling::default() };
    let logits_from = Some(prompt.len() as u32 - 1);
    let request = Request { prompt, predict: Some(predict), sampling, logits_from, ..Request::default() };
    engine.submit(request).expect("a request");
    let mut found = (u32::MAX, vec![], vec![]);
    while !engine.is_idle() {
        for event in engine.step(&mut |_| ()).expect("a step") {
            match event {
                Event::Started { cached, .. } => found.0 = cached,
                Event::Token { token, .. } => found.1.push(token),
                Event::Logits { logits, .. } => found.2.push(logits),
                Event::Hidden { .. } | Event::Finished { .. } => {}
            }
        }
    }
    while engine.has_unsaved() {
        engine.save_page();
    }
    found
}

fn prompt() -> Vec<u32> {
    (0..PROMPT).map(|t| t * 37 % 320).collect()
}

fn check(test: &str, make: &dyn Fn() -> Box<dyn Device>, types: &[KvTypes], predict: u32) {
    let f = Fixture::open("arch/llama");
    let folder = Folder::new(test);
    for (i, kv) in types.iter().enumerate() {
        let new = || engine(&f, make(), *kv, ActPrecision::F16, &folder.0);
        let mut first = new();
        let cold = answer(&mut first, prompt(), predict);
        assert_eq!((cold.0, cold.1.len()), (0, predict as usize), "{test}, {kv}: nothing of other types is taken");
        let full = (PROMPT + predict - 1) / 32;
        assert_eq!(first.kept_pages(), (full as u64, 0));
        // Its writer ends with it.
        drop(first);
        let mut second = new();
        let warm = answer(&mut second, prompt(), predict);
        assert_eq!((warm.0, second.kept_pages()), (96, (0, 3)), "{test}, {kv}");
        assert!(warm.1 == cold.1 && warm.2 == cold.2, "{test}, {kv}: the same to the last bit");
        let other = [&prompt()[..64], &[1; 40]].concat();
        assert_eq!(answer(&mut second, other, 1).0, 64, "what is in memory by now is not read again");
        assert_eq!(second.kept_pages().1, 3);
        drop(second);
        let files = std::fs::read_dir(&folder.0).expect("a folder").count();
        assert_eq!(files, (full as usize + 1) * (i + 1), "one file a page");
    }
    let mut coarse = engine(&f, make(), types[0], ActPrecision::Q8, &folder.0);
    assert_eq!(answer(&mut coarse, prompt(), 1).0, 0, "nor is anything of other activations");
}

const F16: KvTypes = KvTypes { k: KvType::F16, v: KvType::F16 };
const MIXED: KvTypes = KvTypes { k: KvType::Q8_0, v: KvType::F16 };

#[test]
fn cpu() {
    let f32 = KvTypes { k: KvType::F32, v: KvType::F32 };
    check("cpu", &|| Box::new(CpuDevice::new(1).expect("a device")), &[f32, F16, MIXED], 40);
}

/// Pages come back as they were put there, each by itself; what is no page is refused.
fn round_trip(device: &mut dyn Device) {
    let f = Fixture::open("arch/llama");
    for types in [F16, MIXED, KvTypes { k: KvType::F32, v: KvType::F32 }] {
        let kv = Arc::new(KvLayout::new(&f.graph, types, 3));
        device.load(&f.graph, &kv, &f.weights, &mut |_| ()).expect("the model loads");
        let mut bytes = vec![];
        assert!(device.saved_page(true, &mut bytes).is_err(), "nothing is being saved");
        device.save_page(0).expect("a page");
        assert!(device.save_page(1).is_err(), "one at a time");
        assert!(device.saved_page(true, &mut bytes).expect("a page"));
        let pattern = |page: usize| (0..bytes.len()).map(|i| (i * 7 + page * 31) as u8).collect::<Vec<u8>>();
        for page in 0..3 {
            device.load_page(page, &pattern(page as usize)).expect("a page");
        }
        let mut got = vec![];
        for page in [2, 0, 1] {
            device.save_page(page).expect("a page");
            while !device.saved_page(false, &mut got).expect("a page") {}
            assert!(got == pattern(page as usize), "{types}, page {page}");
        }
        assert!(device.load_page(3, &bytes).is_err() && device.save_page(3).is_err(), "there are three");
        assert!(
            device.load_page(0, &bytes[1..]).is_err() && device.load_page(0, &[&bytes[..], &[0]].concat()).is_err()
        );
    }
}

#[test]
fn pages_come_back_as_they_were() {
    round_trip(&mut InterpretedDevice::new(gpu_caps(32), 7));
    round_trip(&mut CpuDevice::new(1).expect("a device"));
    if let Some(mut device) = support::vulkan(&VulkanOptions::default()) {
        round_trip(&mut device);
    }
}

#[test]
fn vulkan() {
    let Some(first) = support::vulkan(&VulkanOptions::default()) else { return };
    let index = first.report().index;
    drop(first);
    let open = || Box::new(VulkanDevice::open(index, &VulkanOptions::default()).expect("opens")) as Box<dyn Device>;
    check("vulkan", &open, &[F16, MIXED], 30);
}
