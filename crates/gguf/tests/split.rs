//! Split models: opening from any part, and parts that do not belong together.

use std::path::{Path, PathBuf};

use zinc_gguf::{Gguf, GgufError, GgufWriter, TensorType};

/// A folder that is removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).expect("a writable target folder");
        Self(path)
    }

    fn part(&self, number: u16) -> PathBuf {
        self.0.join(format!("model-{number:05}-of-00003.gguf"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Part `number` (from 0) of three, with one tensor, as gguf-split writes it.
fn part(number: u16, tensor: &str, total: i32) -> GgufWriter<'static> {
    let mut w = GgufWriter::new();
    if number == 0 {
        w.set("general.architecture", "llama");
    }
    w.set("split.no", number).set("split.count", 3_u16).set("split.tensors.count", total);
    w.tensor(tensor, &[1, 2], TensorType::F32, vec![number as u8; 8]).unwrap();
    w
}

fn write_all(folder: &Folder) {
    for (i, name) in ["a", "b", "c"].into_iter().enumerate() {
        let i = i as u16;
        part(i, name, 3).save(folder.part(i + 1)).unwrap();
    }
}

/// The error behind the path.
fn inner(error: GgufError) -> GgufError {
    match error {
        GgufError::InFile { source, .. } => *source,
        other => other,
    }
}

#[test]
fn any_part_opens_the_whole_model() {
    let folder = Folder::new("split_whole");
    write_all(&folder);
    for number in 1..=3 {
        let gguf = Gguf::open(folder.part(number)).unwrap();
        assert_eq!(gguf.paths(), [1, 2, 3].map(|i| folder.part(i)));
        assert_eq!(gguf.metadata().str("general.architecture").unwrap(), Some("llama"));
        let names: Vec<_> = gguf.tensors().iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c"]);
        for (i, t) in gguf.tensors().iter().enumerate() {
            assert_eq!(t.part, i);
            assert_eq!(gguf.data(t), [i as u8; 8]);
        }
        let sizes = [1, 2, 3].map(|i| std::fs::metadata(folder.part(i)).unwrap().len());
        assert_eq!(gguf.file_bytes(), sizes.iter().sum::<u64>());
    }
}

#[test]
fn a_missing_part_is_named() {
    let folder = Folder::new("split_missing");
    write_all(&folder);
    std::fs::remove_file(folder.part(2)).unwrap();
    let error = Gguf::open(folder.part(1)).unwrap_err();
    assert!(error.to_string().contains("model-00002-of-00003.gguf"), "{error}");
    assert!(matches!(error, GgufError::MissingPart { .. }) && error.to_string().contains("one folder"), "{error}");
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let folder = Folder::new("split_mixed");
    write_all(&folder);
    let open = || inner(Gguf::open(folder.part(1)).unwrap_err());

    part(2, "c", 3).save(folder.part(2)).unwrap();
    let error = open();
    assert!(matches!(error, GgufError::Split { key: "split.no", expected: 1, .. }), "{error}");

    part(1, "a", 3).save(folder.part(2)).unwrap();
    assert!(matches!(open(), GgufError::DuplicateTensor { .. }));

    GgufWriter::new().save(folder.part(2)).unwrap();
    let error = open();
    assert!(matches!(error, GgufError::Split { key: "split.count", expected: 3, .. }), "{error}");

    write_all(&folder);
    part(0, "a", 4).save(folder.part(1)).unwrap();
    let error = open();
    assert!(matches!(error, GgufError::Split { key: "split.tensors.count", .. }), "{error}");
}

#[test]
fn a_renamed_part_and_a_part_from_memory_say_what_is_wrong() {
    let folder = Folder::new("split_renamed");
    let path = folder.0.join("renamed.gguf");
    part(1, "b", 3).save(&path).unwrap();
    let error = Gguf::open(&path).unwrap_err();
    assert!(error.to_string().contains("NAME-00002-of-00003.gguf"), "{error}");
    let bytes = part(1, "b", 3).to_bytes().unwrap();
    assert!(matches!(Gguf::from_bytes(bytes), Err(GgufError::SplitName { part: 2, count: 3 })));
}

#[test]
fn files_that_cannot_be_opened_are_named() {
    let folder = Folder::new("split_io");
    let error = Gguf::open(folder.0.join("absent.gguf")).unwrap_err();
    assert!(error.to_string().contains("absent.gguf"), "{error}");
    std::fs::write(folder.0.join("empty.gguf"), b"").unwrap();
    let error = Gguf::open(folder.0.join("empty.gguf")).unwrap_err();
    assert!(error.to_string().contains("empty"), "{error}");
    assert!(Gguf::open(&folder.0).is_err());
}
