//! Chat templates against Python's jinja2, for 13 published templates.

mod fixtures;

use serde_json::Value;
use zinc_text::{ChatTemplate, CivilTime, TemplateError};

#[test]
fn every_case_of_every_template() {
    let Some(folder) = fixtures::shared("chat") else { return };
    // 2025-07-26 12:34:56
    let now = CivilTime::from_unix_seconds(1_753_533_296);
    let (mut templates, mut cases, mut wrong) = (0, 0, Vec::new());
    for entry in std::fs::read_dir(&folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let json: Value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("JSON");
        let name = json["template"].as_str().expect("the template's file");
        let source = std::fs::read_to_string(folder.join(name)).expect("a template");
        let template = ChatTemplate::new(&source).unwrap_or_else(|error| panic!("{name}: {error}"));
        templates += 1;
        for case in json["cases"].as_array().expect("a list of cases") {
            cases += 1;
            let context = case["context"].as_object().expect("the variables");
            let found = template.render_context(context, now);
            let right = match (&found, case["expected"].as_str(), case["raises"].as_str()) {
                (Ok(text), Some(expected), None) => text == expected,
                (Err(TemplateError::Raised(message)), None, Some(raises)) => message == raises,
                _ => false,
            };
            if !right {
                let case_name = &case["name"];
                wrong.push(format!("{name}, {case_name}:\n{found:?}\nexpected\n{:?}", case["expected"]));
            }
        }
    }
    assert!(templates >= 13 && cases > 350, "{templates} templates, {cases} cases");
    assert!(wrong.is_empty(), "{} of {cases} wrong\n{}", wrong.len(), wrong.join("\n\n"));
}
