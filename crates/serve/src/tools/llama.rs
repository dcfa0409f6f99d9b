//! Calls of Llama 3.1 to 3.3: JSON that is the whole answer.
//!
//! ```text
//! {"name": "get_weather", "parameters": {"city": "Paris"}}
//! ```

use super::{Budget, Family, hermes};
use crate::error::ApiError;
use serde_json::Value;

pub(super) static FAMILY: Family = Family {
    marks: &["tools", "<|start_header_id|>"],
    foreign: &[],
    tags: None,
    between: "",
    native: true,
    parse: hermes::parse,
    in_argument: hermes::ends_in_string,
    rule,
};

fn rule(name: &str, function: &Value, budget: &mut Budget) -> Result<String, ApiError> {
    hermes::json_rule(name, function, ["", "parameters", ""], budget)
}
